#!/usr/bin/env python3
"""What ./dev bench makes of numbers: verdicts, the table, the page. The numbers are canned.

bench_report.py [--qpair PATH] [--build FOLDER] [unittest arguments]
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

BENCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench")
sys.dont_write_bytecode = True
sys.path.insert(0, BENCH)
import contenders  # noqa: E402
import goals  # noqa: E402
import page  # noqa: E402

LATENCY = {"key": "a", "what": "a <put>", "peer": "a peer", "unit": "ns", "at_most": 1.0}
RATE = {"key": "b", "what": "a rate", "peer": "another", "unit": "/s", "at_least": 0.8}


def rounds(*pairs):
    return [{"ours": ours, "theirs": theirs} for ours, theirs in pairs]


def report(**changes):
    points = [[8, 1500.0, 1200.0, 2500.0, 3], [1 << 20, 30_000.0, 29_000.0, 31_000.0, 3]]
    return dict({
        "time": "2026-01-01T00:00:00+00:00", "quick": False, "seconds": 5,
        "machine": {"cpus": 2, "model": "A & B", "memory_bytes": 1 << 34, "kernel": "6.1", "load_before": 0.1, "load_after": 2.0},
        "device": "emulated", "wires": ["shared", "udp"], "versions": {"qpair": "abc"}, "missing": {}, "failures": {},
        "goals": [goals.judge(LATENCY, rounds((90, 100))), goals.judge(RATE, rounds((40, 100)))],
        "benchmarks": {"bench-post": {"qpair_enqueue": {"real_time": 1.5, "ns_per_op": 2.5, "time_unit": "ns", "repetitions": 9}}},
        "figures": [{"key": "f", "title": "Latency <of put>", "x": "bytes", "y": "ns", "lines": [{"name": "qpair, shared", "points": points}]}],
        "commands": {"iperf3": "iperf3 -s & iperf3 -c <host>"},
    }, **changes)


class Verdicts(unittest.TestCase):
    def test_the_median_of_the_ratios_counts_not_the_ratio_of_the_medians(self):
        judged = goals.judge(LATENCY, rounds((1, 2), (30, 10), (80, 100)))
        self.assertEqual((judged["ratio"], judged["lowest"], judged["highest"]), (0.8, 0.5, 3.0))
        self.assertEqual(judged["verdict"], "met")

    def test_the_bound_itself_is_met(self):
        self.assertEqual(goals.judge(LATENCY, rounds((7, 7)))["verdict"], "met")
        self.assertEqual(goals.judge(RATE, rounds((80, 100)))["verdict"], "met")

    def test_a_missed_goal_says_by_how_much(self):
        slow = goals.judge(LATENCY, rounds((250, 100)))
        self.assertEqual((slow["verdict"], goals.by_how_much(slow)), ("missed", "by a factor of 2.50"))
        low = goals.judge(RATE, rounds((40, 100)))
        self.assertEqual((low["verdict"], goals.by_how_much(low)), ("missed", "by a factor of 2.00"))

    def test_without_numbers_there_is_no_verdict(self):
        judged = goals.judge(LATENCY, [], "ucx_perftest is not installed")
        self.assertEqual(judged["verdict"], "not measured")
        self.assertIn("not measured: ucx_perftest", goals.table([judged]))

    def test_the_table_has_all_goals(self):
        table = goals.table([goals.judge(goal, rounds((1, 1))) for goal in goals.GOALS])
        self.assertEqual(len(table.splitlines()), 1 + len(goals.GOALS))
        for goal in goals.GOALS:
            self.assertIn(goal["what"], table)


class Page(unittest.TestCase):
    def test_needs_nothing_from_elsewhere(self):
        rendered = page.render(report())
        self.assertNotRegex(rendered, r"https?://|<script|src=|@import|url\(")

    def test_figures_are_well_formed_and_have_every_point(self):
        rendered = page.render(report())
        figures = re.findall(r"<svg.*?</svg>", rendered, re.S)
        self.assertEqual(len(figures), 1)
        drawing = xml.etree.ElementTree.fromstring(figures[0])
        self.assertEqual(len(drawing.findall("circle")), 2)
        for circle in drawing.findall("circle"):
            self.assertTrue(page.LEFT <= float(circle.get("cx")) <= page.WIDTH - page.RIGHT)
            self.assertTrue(page.TOP <= float(circle.get("cy")) <= page.HEIGHT - page.BOTTOM)

    def test_names_are_text(self):
        rendered = page.render(report())
        for name in ("a &lt;put&gt;", "Latency &lt;of put&gt;", "A &amp; B", "iperf3 -c &lt;host&gt;"):
            self.assertIn(name, rendered)

    def test_verdicts_are_shown(self):
        rendered = page.render(report())
        self.assertRegex(rendered, r'class="text met">met<')
        self.assertRegex(rendered, r'class="text missed">missed by a factor of 2.00<')

    def test_what_is_missing_is_said(self):
        rendered = page.render(report(missing={"iperf3": "iperf3"}, failures={"UCX tcp": "no such transport"}, figures=[], benchmarks={},
                                      wires=[], goals=[goals.judge(LATENCY, [], "no peer")]))
        for words in ("iperf3 is not installed", "no such transport", "not measured: no peer", "no other wire"):
            self.assertIn(words, rendered)

    def test_one_point_and_nothing_measured_are_no_reason_to_fail(self):
        data = {"key": "k", "title": "t", "x": "queue pairs", "y": "/s", "lines": [{"name": "n", "points": [[1, 5.0, 5.0, 5.0, 1]]}]}
        self.assertIn("<circle", page.figure(data))
        self.assertEqual(page.figure(dict(data, lines=[{"name": "n", "points": [[1, 0.0, 0.0, 0.0, 1]]}])), "")

    def test_the_program_makes_a_page_of_a_report(self):
        folder = tempfile.mkdtemp(prefix="qpair-report-")
        self.addCleanup(shutil.rmtree, folder)
        source, result = os.path.join(folder, "report.json"), os.path.join(folder, "report.html")
        with open(source, "w") as file:
            json.dump(report(), file)
        subprocess.run([sys.executable, "-B", os.path.join(BENCH, "page.py"), source, result], check=True)
        with open(result) as file:
            self.assertEqual(file.read(), page.render(report()))


class Peers(unittest.TestCase):
    def test_a_program_that_fails_says_why_and_one_that_hangs_is_ended(self):
        with self.assertRaisesRegex(contenders.Failed, "status 3: because"):
            contenders.run(["sh", "-c", "echo because >&2; exit 3"])
        with self.assertRaisesRegex(contenders.Failed, "not done within"):
            contenders.run(["sleep", "1000"], timeout=0.1)

    def test_a_server_that_does_not_listen_is_noticed(self):
        with self.assertRaisesRegex(contenders.Failed, "does not listen"):
            contenders.run_pair(["true", "{port}"], ["true", "{port}"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--qpair")
    parser.add_argument("--build")
    _, rest = parser.parse_known_args()
    unittest.main(argv=sys.argv[:1] + rest)
