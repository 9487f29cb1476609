#!/usr/bin/env python3
"""report.json as one static page: no network, no scripts; figures are inline SVG. What is missing in the report is missing on
the page, which says so.

page.py report.json report.html
"""

import html
import json
import math
import sys

import goals

WIDTH, HEIGHT = 780, 380
LEFT, RIGHT, TOP, BOTTOM = 74, 240, 16, 44
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b", "#777777", "#b2182b", "#542788"]

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #888; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1000px; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; margin: 1em 0; }
th, td { text-align: right; padding: .25em .7em; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child, .text { text-align: left; }
.met { color: #16833c; font-weight: 600; } .missed { color: #c2410c; font-weight: 600; }
svg { width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: currentColor; }
.grid { stroke: var(--line); } .note, figcaption { color: var(--soft); }
code { font-size: 12px; overflow-wrap: anywhere; } figure { margin: 1.5em 0; } summary { cursor: pointer; }
"""


def text(value):
    return html.escape(str(value))


def size_name(value):
    for shift, unit in ((20, "MiB"), (10, "KiB")):
        if value >= 1 << shift and value % (1 << shift) == 0:
            return f"{value >> shift} {unit}"
    return f"{value} B"


def quantity(value, unit):
    if unit == "ns":
        for limit, scale, name in ((1e9, 1e9, "s"), (1e6, 1e6, "ms"), (1e3, 1e3, "µs")):
            if value >= limit:
                return f"{value / scale:.3g} {name}"
        return f"{value:.3g} ns"
    for limit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g} {name}{unit}"
    return f"{value:.3g} {unit}"


class Scale:
    """A logarithmic axis."""

    def __init__(self, values, base, first, last):
        self.base = base
        low, high = min(values), max(values)
        self.low = math.floor(math.log(low, base) + 1e-9)
        self.high = max(math.ceil(math.log(high, base) - 1e-9), self.low + 1)
        self.first, self.last = first, last

    def at(self, value):
        share = (math.log(value, self.base) - self.low) / (self.high - self.low)
        return self.first + share * (self.last - self.first)

    def ticks(self):
        step = max(1, (self.high - self.low) // 8)
        return [self.base**power for power in range(self.low, self.high + 1, step)]


def figure(data):
    points = [point for line in data["lines"] for point in line["points"] if point[1] > 0 and point[0] > 0]
    if not points:
        return ""
    x = Scale([point[0] for point in points], 2 if data["x"] == "bytes" else 10, LEFT, WIDTH - RIGHT)
    y = Scale([value for point in points for value in point[1:4] if value > 0], 10, HEIGHT - BOTTOM, TOP)
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{text(data["title"])}">']
    for tick in y.ticks():
        at = y.at(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{text(quantity(tick, data["y"]))}</text>')
    for tick in x.ticks():
        at = x.at(tick)
        label = size_name(tick) if data["x"] == "bytes" else f"{tick:g}"
        parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{text(label)}</text>')
    if data["x"] != "bytes":
        parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{text(data["x"])}</text>')
    for index, line in enumerate(data["lines"]):
        parts.append(curve(line, COLOURS[index % len(COLOURS)], x, y, data))
        at = TOP + 12 + 20 * index
        parts.append(f'<rect x="{WIDTH - RIGHT + 14}" y="{at - 9}" width="12" height="10" fill="{COLOURS[index % len(COLOURS)]}"/>')
        parts.append(f'<text x="{WIDTH - RIGHT + 32}" y="{at}">{text(line["name"])}</text>')
    parts.append("</svg>")
    return (f'<figure><h3>{text(data["title"])}</h3>{"".join(parts)}<details><summary>numbers</summary>'
            f'{numbers(data)}</details></figure>')


def curve(line, colour, x, y, data):
    drawn = [point for point in line["points"] if point[1] > 0 and point[0] > 0]
    path = " ".join(f"{x.at(p[0]):.1f},{y.at(p[1]):.1f}" for p in drawn)
    parts = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>']
    for p in drawn:
        at, low, high = x.at(p[0]), y.at(max(p[2], y.base**y.low)), y.at(p[3])
        where = size_name(p[0]) if data["x"] == "bytes" else f'{p[0]} {data["x"]}'
        label = f'{line["name"]}, {where}: {quantity(p[1], data["y"])} ({quantity(p[2], data["y"])} to {quantity(p[3], data["y"])})'
        parts.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{low:.1f}" y2="{high:.1f}" stroke="{colour}" stroke-opacity=".35" stroke-width="3"/>')
        parts.append(f'<circle cx="{at:.1f}" cy="{y.at(p[1]):.1f}" r="3.5" fill="{colour}"><title>{text(label)}</title></circle>')
    return "".join(parts)


def table(header, rows):
    head = "".join(f"<th>{text(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def numbers(data):
    xs = sorted({point[0] for line in data["lines"] for point in line["points"]})
    rows = []
    for value in xs:
        row = [size_name(value) if data["x"] == "bytes" else value]
        for line in data["lines"]:
            found = [point for point in line["points"] if point[0] == value]
            row.append(quantity(found[0][1], data["y"]) if found else "")
        rows.append(row)
    return table([data["x"]] + [line["name"] for line in data["lines"]], rows)


def goal_row(goal):
    if "ratio" not in goal:
        verdict = goal["verdict"] + (f": {goal['note']}" if goal.get("note") else "")
        return [goal["what"], "", goal["peer"], "", "", "", goals.bound(goal), verdict]
    verdict = f"{goal['verdict']} {goals.by_how_much(goal)}".strip() + (f" ({goal['note']})" if goal.get("note") else "")
    return [goal["what"], quantity(goal["ours"], goal["unit"]), goal["peer"], quantity(goal["theirs"], goal["unit"]),
            f"{goal['ratio']:.2f}", f"{goal['lowest']:.2f} to {goal['highest']:.2f}, {len(goal['rounds'])} rounds",
            goals.bound(goal), verdict]


def goal_table(judged):
    header = ["what", "ours", "peer", "theirs", "ratio", "spread", "goal", ""]
    rows = ""
    for goal in judged:
        cells = goal_row(goal)
        cells = [f'<td class="text">{text(cell)}</td>' if i in (0, 2) else f"<td>{text(cell)}</td>" for i, cell in enumerate(cells[:-1])] + [
            f'<td class="text {text(goal["verdict"].split()[0])}">{text(cells[-1])}</td>']
        rows += "<tr>" + "".join(cells) + "</tr>"
    return "<table><tr>" + "".join(f"<th>{cell}</th>" for cell in header) + f"</tr>{rows}</table>"


def benchmark_tables(benchmarks):
    parts = []
    for program, rows in benchmarks.items():
        if not rows:
            continue
        counters = sorted({name for row in rows.values() for name in row} - {"time_unit", "real_time", "repetitions"})
        body = [[name, f'{row["real_time"]:.4g} {row["time_unit"]}', *(f"{row[c]:.4g}" if c in row else "" for c in counters), row["repetitions"]]
                for name, row in rows.items()]
        parts.append(f"<h3>{text(program)}</h3>" + table(["benchmark", "time", *counters, "repetitions"], body))
    return "".join(parts)


def listing(title, entries):
    if not entries:
        return ""
    return f"<h3>{text(title)}</h3>" + "".join(f"<p><b>{text(k)}</b> <code>{text(v)}</code></p>" for k, v in entries.items())


def render(report):
    machine = report["machine"]
    wires = ", ".join(report["wires"]) or "UDP only: this build has no other wire"
    missing = "".join(f'<p class="missed">{text(p)} is not installed (Debian package {text(d)}): not compared.</p>' for p, d in report["missing"].items())
    return f"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>qpair benchmarks</title>
<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body>
<h1>qpair benchmarks</h1>
<p>{text(report["time"])}{", quick" if report["quick"] else ""}, {text(report["seconds"])} s. {text(machine["cpus"])} × {text(machine["model"])},
{machine["memory_bytes"] / 2**30:.0f} GiB, Linux {text(machine["kernel"])}; load {text(machine["load_before"])} before,
{text(machine["load_after"])} after. Device: {text(report["device"])}. Wires: {text(wires)}.</p>{missing}
<h2>Goals</h2>
<p class="note">Medians of the rounds; a ratio is of two runs one right after the other.</p>
{goal_table(report["goals"])}
<h2>Posting, polling, and many objects</h2>{benchmark_tables(report["benchmarks"])}
<h2>Figures</h2>
<p class="note">Points are medians of the rounds, bars reach from the lowest to the highest. Latencies of qpair are from posting to
completion unless they are called ping-pong; those of UCX and of ib_write_lat and ib_send_lat are half a ping-pong.</p>
{"".join(figure(data) for data in report["figures"])}
<h2>How</h2>{listing("Versions", report["versions"])}{listing("What could not be measured", report["failures"])}
<details><summary>Command lines</summary>{listing("", report["commands"])}</details></body></html>
"""


def write(report, path):
    with open(path, "w") as file:
        file.write(render(report))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: page.py report.json report.html")
    with open(sys.argv[1]) as source:
        write(json.load(source), sys.argv[2])
