"""The project's goals for speed, as ratios within one run, and whether they are met.

Each goal is measured in rounds; a round measures both sides, one right after the other, and gives one ratio. What counts is
the median of the ratios. This file knows nothing of how the numbers come about: `rounds` in the report has them.
"""

import statistics

# `at_most`: ours / theirs should not be above it; `at_least`: not below. `unit`: of the two numbers.
GOALS = [
    {"key": "put_8_shared", "what": "put of 8 B between two processes, shared memory, posting to completion",
     "peer": "UCX put latency over posix shared memory", "unit": "ns", "at_most": 1.0},
    {"key": "put_1m_allocated", "what": "put of 1 MiB, mappable memory",
     "peer": "memcpy of the same size in one thread, in cache", "unit": "B/s", "at_least": 0.9},
    {"key": "put_1m_ordinary", "what": "put of 1 MiB, ordinary memory",
     "peer": "a bare process_vm_writev", "unit": "B/s", "at_least": 0.9},
    {"key": "put_1m_udp", "what": "UDP wire, 1 MiB puts",
     "peer": "iperf3 TCP loopback, one stream", "unit": "B/s", "at_least": 1.0},
    {"key": "put_8_udp", "what": "UDP wire, 8 B put, posting to completion",
     "peer": "UCX TCP put latency", "unit": "ns", "at_most": 1.0},
    {"key": "qps_1000", "what": "1,000 connected queue pairs, message rate of 8 B puts",
     "peer": "the rate with 1", "unit": "/s", "at_least": 0.8},
]

FEWEST_ROUNDS = 5


def judge(goal, rounds, note=None):
    """`rounds`: [{"ours": number, "theirs": number}]. The goal with its ratio, spread and verdict."""
    result = dict(goal, rounds=rounds, note=note)
    ratios = [entry["ours"] / entry["theirs"] for entry in rounds if entry["theirs"]]
    if not ratios:
        return dict(result, verdict="not measured")
    ratio = statistics.median(ratios)
    met = ratio <= goal["at_most"] if "at_most" in goal else ratio >= goal["at_least"]
    return dict(
        result,
        ours=statistics.median(entry["ours"] for entry in rounds),
        theirs=statistics.median(entry["theirs"] for entry in rounds),
        ratio=ratio, lowest=min(ratios), highest=max(ratios),
        verdict="met" if met else "missed",
    )


def bound(goal):
    return f"at most {goal['at_most']:.1f}" if "at_most" in goal else f"at least {goal['at_least']:.1f}"


def by_how_much(goal):
    """Of a missed goal, in words: the factor that is lacking."""
    if goal["verdict"] != "missed":
        return ""
    factor = goal["ratio"] / goal["at_most"] if "at_most" in goal else goal["at_least"] / goal["ratio"]
    return f"by a factor of {factor:.2f}"


def quantity(value, unit):
    if unit == "ns":
        scale, name = (1e3, "µs") if value >= 1e3 else (1, "ns")
    elif value >= 1e9:
        scale, name = 1e9, "G" + unit
    elif value >= 1e6:
        scale, name = 1e6, "M" + unit
    else:
        scale, name = 1e3, "k" + unit
    return f"{value / scale:.3g} {name}" if value / scale < 1000 else f"{value / scale:.0f} {name}"


def table(judged):
    """The goals as lines of text."""
    rows = [("what", "ours", "peer", "ratio", "spread", "goal", "")]
    for goal in judged:
        if "ratio" not in goal:
            rows.append((goal["what"], "-", "-", "-", "-", bound(goal), goal["verdict"] + (f": {goal['note']}" if goal["note"] else "")))
            continue
        rows.append((goal["what"], quantity(goal["ours"], goal["unit"]), quantity(goal["theirs"], goal["unit"]),
                     f"{goal['ratio']:.2f}", f"{goal['lowest']:.2f}…{goal['highest']:.2f}", bound(goal),
                     f"{goal['verdict']} {by_how_much(goal)}".strip() + (f" ({goal['note']})" if goal["note"] else "")))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)
