"""Figures as Markdown."""

import os
import platform
import statistics

from measure import spread


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
    return f"{model}, {os.cpu_count()} processors{memory}, {platform.system()} {platform.release()}, as {who}"


def filesystem(folder):
    """The kind of filesystem that holds `folder`, with its options."""
    best, text = "", "unknown"
    try:
        with open("/proc/self/mounts") as handle:
            for line in handle:
                _, place, kind, options, *_ = line.split()
                inside = place == "/" or (folder + "/").startswith(place + "/")
                if inside and len(place) >= len(best):
                    best, text = place, f"{kind} ({options})"
    except OSError:
        pass
    return text


def number(value, unit):
    """A figure with two digits after the point where they say something."""
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2
    return f"{value:,.{digits}f}{unit if unit == '×' or not unit else ' ' + unit}"


def between(values, unit):
    if len(values) < 3:
        return ""
    low, high = spread(values)
    return f"{number(low, '')} – {number(high, unit)}"


def case_lines(cases):
    lines = ["| what | median | best | 10 % – 90 % | processor | samples |", "|---|---:|---:|---:|---:|---:|"]
    for case in cases:
        if case.samples:
            worked = number(statistics.median(case.worked), "ms") if case.worked else ""
            lines.append(
                f"| {case.name} | {number(case.median(), case.unit)} | {number(case.best(), case.unit)} | "
                f"{between(case.samples, case.unit)} | {worked} | {len(case.samples)} |"
            )
    return lines


def verdict(ratio, value):
    if ratio.aim is None:
        return ""
    return "not measured" if value is None else "met" if ratio.met(value) else "missed"


def ratio_lines(cases, ratios):
    lines = ["| figure | measured | 10 % – 90 % of the rounds | aim | |", "|---|---:|---:|---:|---|"]
    for ratio in ratios:
        value = ratio.measured(cases)
        shown = "" if value is None else number(value, ratio.unit)
        lines.append(
            f"| {ratio.name} | {shown} | {between(ratio.each(cases), ratio.unit)} | {ratio.aim_text()} | "
            f"{verdict(ratio, value)} |"
        )
    return lines


def summary(groups):
    """One line for each aim, and whether all were met."""
    lines, met, all_aims = [], 0, 0
    for name, _, group, _ in groups:
        for ratio in group.ratios:
            if ratio.aim is None:
                continue
            value = ratio.measured(group.cases)
            good = value is not None and ratio.met(value)
            met, all_aims = met + good, all_aims + 1
            if not good:
                shown = "not measured" if value is None else number(value, ratio.unit)
                lines.append(f"- {name}: {ratio.name} {shown}, aim {ratio.aim_text()}")
    head = f"{met} of {all_aims} aims were met." + (" Not met:" if lines else "")
    return [head, "", *lines, *([""] if lines else [])], met == all_aims


def markdown(groups, problems, head, charts=()):
    """The report, and whether every aim was met. `groups` is a list of (name, what it measures, group, seconds)."""
    told, met = summary(groups)
    lines = [*head, "", *told]
    problems = list(problems)
    for name, about, group, seconds in groups:
        lines += [f"## {name}", "", f"{about} ({seconds:.0f} s)", ""]
        problems += [f"{case.name}: {case.problem}" for case in group.cases if not case.samples]
        lines += [*case_lines(group.cases), ""]
        if group.ratios:
            lines += [*ratio_lines(group.cases, group.ratios), ""]
        if name in charts:
            lines += [f"![{name}]({name}.svg)", ""]
    if problems:
        lines += ["## Not measured", "", *[f"- {problem}" for problem in problems], ""]
    return "\n".join(lines), met
