"""Figures as Markdown and as a chart."""

import os
import platform
import statistics
from xml.sax.saxutils import escape


def machine():
    """What the figures were taken on."""
    model, memory = platform.machine(), ""
    try:
        with open("/proc/cpuinfo") as handle:
            names = [line.split(":", 1)[1].strip() for line in handle if line.startswith("model name")]
        model = names[0] if names else model
        with open("/proc/meminfo") as handle:
            memory = f", {int(handle.readline().split()[1]) >> 20} GiB"
    except OSError:
        pass
    who = "root" if os.geteuid() == 0 else "an ordinary user"
    return (
        f"{model}, {os.cpu_count()} processors{memory}, {platform.system()} {platform.release()}, as {who}, "
        f"load {os.getloadavg()[0]:.1f} at the end"
    )


def per_round(ratio, cases):
    """The ratio of each round's own figures."""
    rounds = min((len(case.samples) for case in cases if case.samples), default=0)
    values = []
    for number in range(rounds):
        figures = {case.name: ratio.of(case)[number] for case in cases if len(case.samples) > number}
        try:
            values.append(ratio.value(figures))
        except (KeyError, ZeroDivisionError):
            return []
    return sorted(values)


def spread_text(values, unit):
    if len(values) < 3:
        return ""
    last = len(values) - 1
    return f"{values[round(last * 0.1)]:.2f} – {values[round(last * 0.9)]:.2f}{unit}"


def markdown(groups, problems, command):
    """The tables, and whether every aim was met. `groups` is a list of (name, cases, ratios)."""
    lines = [f"Made by `{command}`: {machine()}.", ""]
    problems = list(problems)
    met = True
    for name, cases, ratios in groups:
        lines += [f"## {name}", "", "| what | median ms | least | 10 % – 90 % | processor ms | rounds |",
                  "|---|---:|---:|---:|---:|---:|"]
        for case in cases:
            if case.samples:
                low, high = case.spread()
                lines.append(
                    f"| {case.name} | {case.median():.2f} | {min(case.samples):.2f} | {low:.2f} – {high:.2f} | "
                    f"{statistics.median(case.worked):.2f} | {len(case.samples)} |"
                )
            else:
                problems.append(f"{case.name}: {case.problem}")
        lines.append("")
        if not ratios:
            continue
        lines += ["| figure | measured | 10 % – 90 % of the rounds | aim | |", "|---|---:|---:|---:|---|"]
        for ratio in ratios:
            try:
                value = ratio.value({case.name: statistics.median(ratio.of(case)) for case in cases if case.samples})
            except (KeyError, ZeroDivisionError):
                lines.append(f"| {ratio.name} | not measured | | {ratio.aim_text()} | |")
                met = False
                continue
            good = ratio.met(value)
            met = met and good
            spread = spread_text(per_round(ratio, cases), ratio.unit)
            lines.append(
                f"| {ratio.name} | {value:.2f}{ratio.unit} | {spread} | {ratio.aim_text()} | {'met' if good else 'missed'} |"
            )
        lines.append("")
    if problems:
        lines += ["Not measured:", ""] + [f"- {problem}" for problem in problems] + [""]
    return "\n".join(lines), met


def chart(cases, title):
    """Horizontal bars on a logarithmic scale, as SVG: the whisker is 10 % to 90 %."""
    import math

    shown = sorted((case for case in cases if case.samples), key=lambda case: case.median())
    if not shown:
        return ""
    left, width, row = 330, 520, 26
    least = min(case.spread()[0] for case in shown)
    most = max(case.spread()[1] for case in shown)
    low, high = math.floor(math.log10(max(least, 0.01))), math.ceil(math.log10(most))
    high = max(high, low + 1)

    def at(value):
        return left + (math.log10(max(value, 10**low)) - low) / (high - low) * width

    height = 60 + row * len(shown)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 90}" height="{height}" '
        'font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="10" y="22" font-size="15" font-weight="bold">{escape(title)}</text>',
    ]
    for power in range(low, high + 1):
        x = at(10**power)
        parts.append(f'<line x1="{x:.0f}" y1="34" x2="{x:.0f}" y2="{height - 22}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.0f}" y="{height - 6}" text-anchor="middle" fill="#555">{10.0**power:g} ms</text>')
    for index, case in enumerate(shown):
        y = 40 + row * index
        colour = "#d08a1d" if "skep" in case.name else "#8fa7bf"
        start, end = (at(value) for value in case.spread())
        middle = at(case.median())
        parts += [
            f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{escape(case.name.replace("`", ""))}</text>',
            f'<rect x="{left}" y="{y + 3}" width="{max(middle - left, 1):.1f}" height="14" fill="{colour}"/>',
            f'<line x1="{start:.1f}" y1="{y + 10}" x2="{end:.1f}" y2="{y + 10}" stroke="#333"/>',
            f'<text x="{end + 6:.1f}" y="{y + 14}">{case.median():.2f}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])
