"""A group as a picture: horizontal bars on a logarithmic scale, as SVG."""

import math
from xml.sax.saxutils import escape

LEFT, WIDTH, ROW = 400, 520, 26


def chart(cases, title):
    """The whisker is 10 % to 90 %. Only what is counted in milliseconds is drawn."""
    shown = [case for case in cases if case.samples and case.drawn and case.unit == "ms"]
    shown.sort(key=lambda case: case.median())
    if not shown:
        return ""
    least = min(case.spread()[0] for case in shown)
    most = max(case.spread()[1] for case in shown)
    low, high = math.floor(math.log10(max(least, 0.01))), math.ceil(math.log10(most))
    high = max(high, low + 1)

    def at(value):
        return LEFT + (math.log10(max(value, 10**low)) - low) / (high - low) * WIDTH

    height = 60 + ROW * len(shown)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 90}" height="{height}" '
        'font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="10" y="22" font-size="15" font-weight="bold">{escape(title)}</text>',
    ]
    for power in range(low, high + 1):
        x = at(10**power)
        parts.append(f'<line x1="{x:.0f}" y1="34" x2="{x:.0f}" y2="{height - 22}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.0f}" y="{height - 6}" text-anchor="middle" fill="#555">{10.0**power:g} ms</text>')
    for index, case in enumerate(shown):
        y = 40 + ROW * index
        colour = "#d08a1d" if case.name.startswith("`skep") or ", inside" in case.name else "#8fa7bf"
        start, end = (at(value) for value in case.spread())
        middle = at(case.median())
        parts += [
            f'<text x="{LEFT - 8}" y="{y + 14}" text-anchor="end">{escape(case.name.replace("`", ""))}</text>',
            f'<rect x="{LEFT}" y="{y + 3}" width="{max(middle - LEFT, 1):.1f}" height="14" fill="{colour}"/>',
            f'<line x1="{start:.1f}" y1="{y + 10}" x2="{end:.1f}" y2="{y + 10}" stroke="#333"/>',
            f'<text x="{end + 6:.1f}" y="{y + 14}">{case.median():,.2f}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])
