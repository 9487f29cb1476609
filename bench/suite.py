#!/usr/bin/env python3
"""Runs qpair and its peers side by side and writes report.json and report.html. `./dev bench` builds and calls it.

suite.py --build FOLDER [--output FOLDER] [--quick] [--minutes N]

Everything that is compared is measured in rounds: all contenders one after the other, then again. What counts is the median
of the rounds, so that what else the machine does hits all of them. docs/benchmarks.md says what is measured and how.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time

import contenders
import goals
import page
from contenders import Failed

SCHEMA_VERSION = 1
SIZES = [2, 8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
QUICK_SIZES = [8, 4 << 10, 1 << 20]
BATCHES = [1, 4, 16, 64]
QPS = [1, 10, 100, 1000]
OPERATIONS = ["put", "get", "send"]
UCX_LATENCY = {"put": "ucp_put_lat", "send": "tag_lat"}
UCX_BANDWIDTH = {"put": "ucp_put_bw", "get": "ucp_get", "send": "tag_bw"}
LARGEST_FOR_TCP = 4 << 20  # of UCX, where 64 MiB take many seconds on two cores


class Figure:
    """Values by line and x, one for each round."""

    def __init__(self, key, title, x, y):
        self.key, self.title, self.x, self.y = key, title, x, y
        self.values = {}

    def add(self, line, x, value):
        self.values.setdefault(line, {}).setdefault(x, []).append(value)

    def json(self):
        lines = [{"name": name, "points": [[x, statistics.median(values), min(values), max(values), len(values)]
                                           for x, values in sorted(points.items())]}
                 for name, points in self.values.items()]
        return {"key": self.key, "title": self.title, "x": self.x, "y": self.y, "lines": lines}


class Suite:
    def __init__(self, options):
        self.quick = options.quick
        self.build = os.path.abspath(options.build)
        self.bin = os.path.join(self.build, "bin")
        self.output = options.output or os.path.join(self.build, "bench")
        os.makedirs(self.output, exist_ok=True)
        binary = os.path.join(self.bin, "qpair")
        self.wires = contenders.wires_of(binary)
        self.qpair = contenders.Qpair(binary, self.wires)
        self.deadline = time.monotonic() + 60 * options.minutes
        self.sizes = QUICK_SIZES if self.quick else SIZES
        self.duration = 0.03 if self.quick else 0.05  # seconds, of one measurement of a curve
        self.missing = contenders.missing_peers()
        self.failures = {}
        self.figures = {}
        self.emulated = not self.real_device()

    @staticmethod
    def real_device():
        folder = "/sys/class/infiniband"
        return os.path.isdir(folder) and bool(os.listdir(folder))

    def say(self, text):
        print(f"bench: {text}", file=sys.stderr, flush=True)

    def attempt(self, what, function):
        """The function's result; None when it failed, which is noted once."""
        try:
            return function()
        except (Failed, OSError, KeyError, IndexError, ValueError) as error:
            if what not in self.failures:
                self.say(f"{what}: {error}")
            self.failures[what] = str(error)
            return None

    def figure(self, key, title, x, y):
        return self.figures.setdefault(key, Figure(key, title, x, y))

    # --- the wires, by the names that the report uses: what is not there runs over UDP, and says so ---
    def main_wire(self):
        return self.wires[0] if self.wires else "udp"

    def all_wires(self):
        return self.wires or ["udp"]

    # --- goals ---
    def goal_rounds(self, seconds):
        main, q = self.main_wire(), self.qpair
        many = ["--window", "64"]
        return {
            "put_8_shared": (
                lambda: q.latency(main, "put", [8], seconds)[8]["median"],
                lambda: contenders.ucx("posix", "ucp_put_lat", 8, 50_000, 1000)["median"]),
            "put_1m_allocated": (
                lambda: q.bandwidth(main, "put", [1 << 20], seconds)[1 << 20],
                lambda: contenders.copies(self.bin, self.output, "copy_in_cache", [1 << 20], seconds)[1 << 20]),
            "put_1m_ordinary": (
                lambda: q.bandwidth(main, "put", [1 << 20], seconds, "--memory", "ordinary")[1 << 20],
                lambda: contenders.copies(self.bin, self.output, "process_vm_write", [1 << 20], seconds)[1 << 20]),
            "put_1m_udp": (
                lambda: q.bandwidth("udp", "put", [1 << 20], 2 * seconds)[1 << 20],
                lambda: contenders.iperf3(1)),
            "put_8_udp": (
                lambda: q.latency("udp", "put", [8], seconds)[8]["median"],
                lambda: contenders.ucx("tcp", "ucp_put_lat", 8, 5000, 500)["median"]),
            "qps_1000": (
                lambda: q.rate(main, "put", 8, 2 * seconds, "--qps", "1000", *many),
                lambda: q.rate(main, "put", 8, 2 * seconds, *many)),
        }

    def measure_goals(self):
        rounds = {goal["key"]: [] for goal in goals.GOALS}
        measures = self.goal_rounds(0.1 if self.quick else 0.5)
        for number in range(goals.FEWEST_ROUNDS if self.quick else 7):
            self.say(f"goals, round {number + 1}")
            for key, (ours, theirs) in measures.items():
                pair = [self.attempt(f"{key}, ours", ours)]
                pair.append(None if pair[0] is None else self.attempt(f"{key}, the peer", theirs))
                if None not in pair:
                    rounds[key].append({"ours": pair[0], "theirs": pair[1]})
        no_shared = None if self.wires else "this build has no shared-memory wire: over UDP"
        self.judged = []
        for goal in goals.GOALS:
            note = no_shared if "udp" not in goal["key"] else None
            count = len(rounds[goal["key"]])
            if count < goals.FEWEST_ROUNDS:
                reason = self.failures.get(f"{goal['key']}, ours") or self.failures.get(f"{goal['key']}, the peer")
                note = f"{count} rounds; {reason}"
            self.judged.append(goals.judge(goal, rounds[goal["key"]], note))

    # --- curves ---
    def latency_round(self, operation):
        medians = self.figure(f"latency-{operation}", f"Latency of {operation}, median", "bytes", "ns")
        for wire in self.all_wires():
            tails = self.figure(f"tails-{operation}-{wire}", f"Latency of {operation}, {wire}: median, 99 %, 99.9 %", "bytes", "ns")
            result = self.attempt(f"qpair {operation} latency, {wire}",
                                  lambda: self.qpair.latency(wire, operation, self.sizes, self.duration))
            for size, ns in (result or {}).items():
                medians.add(f"qpair, {wire}", size, ns["median"])
                for name, field in (("median", "median"), ("99 %", "p99"), ("99.9 %", "p999")):
                    tails.add(name, size, ns[field])
            if operation == "put":
                result = self.attempt(f"qpair ping-pong, {wire}", lambda: self.qpair.ping_pong(wire, self.sizes, self.duration))
                for size, ns in (result or {}).items():
                    medians.add(f"qpair, {wire}, ping-pong", size, ns["median"])
            self.perftest_round(operation, "lat", wire, medians)
        if operation in UCX_LATENCY:
            self.ucx_round(UCX_LATENCY[operation], medians, "median")

    def bandwidth_round(self, operation):
        figure = self.figure(f"bandwidth-{operation}", f"Bandwidth of {operation}", "bytes", "B/s")
        kinds = ["allocated", "ordinary"] if operation == "put" else ["allocated"]
        for wire in self.all_wires():
            for kind in kinds:
                result = self.attempt(f"qpair {operation} bandwidth, {wire}, {kind}",
                                      lambda: self.qpair.bandwidth(wire, operation, self.sizes, self.duration, "--memory", kind))
                for size, value in (result or {}).items():
                    figure.add(f"qpair, {wire}" + (", ordinary memory" if kind == "ordinary" else ""), size, value)
            self.perftest_round(operation, "bw", wire, figure)
        self.ucx_round(UCX_BANDWIDTH[operation], figure, "bytes_per_second")
        if operation != "put":
            return
        names = {"copy_in_cache": "memcpy, in cache", "copy_not_in_cache": "memcpy, not in cache", "process_vm_write": "process_vm_writev"}
        for kind, name in names.items():
            result = self.attempt(name, lambda: contenders.copies(self.bin, self.output, kind, self.sizes, 0.03))
            for size, value in (result or {}).items():
                figure.add(name, size, value)

    def perftest_round(self, operation, kind, wire, figure):
        if "ib_write_bw" in self.missing or not self.emulated:
            return
        result = self.attempt(f"perftest {operation} {kind}, {wire}",
                              lambda: contenders.perftest(self.qpair, wire, operation, kind, 20, 8 if self.quick else None))
        for size, value in (result or {}).items():
            if size in self.sizes:
                figure.add(f"perftest, {wire}", size, value["median"] if kind == "lat" else value)

    def ucx_round(self, test, figure, field):
        if "ucx_perftest" in self.missing:
            return
        for transport in contenders.UCX_TRANSPORTS:
            for size in self.sizes:
                if transport == "tcp" and size > LARGEST_FOR_TCP:
                    continue
                iterations = max(5, min(5000 if transport == "posix" else 1000, (64 << 20) // size))
                result = self.attempt(f"UCX {transport} {test}",
                                      lambda: contenders.ucx(transport, test, size, iterations, max(1, iterations // 10)))
                if result is None:
                    break
                figure.add(f"UCX, {transport}", size, result[field])

    def rate_round(self):
        by_batch = self.figure("rate-batch", "Rate of 8 B puts against the batch (operations to a doorbell)", "batch", "/s")
        by_qps = self.figure("rate-qps", "Rate of 8 B puts against the number of queue pairs", "queue pairs", "/s")
        for wire in self.all_wires():
            for batch in BATCHES:
                rate = self.attempt(f"batches of {batch}, {wire}", lambda: self.qpair.rate(
                    wire, "put", 8, 0.2, "--batch", str(batch), "--window", "256"))
                if rate is not None:
                    by_batch.add(f"qpair, {wire}", batch, rate)
            for qps in QPS:
                rate = self.attempt(f"{qps} queue pairs, {wire}", lambda: self.qpair.rate(
                    wire, "put", 8, 0.3, "--qps", str(qps), "--window", "64"))
                if rate is not None:
                    by_qps.add(f"qpair, {wire}", qps, rate)

    def measure_curves(self):
        for number in range(1 if self.quick else 5):
            begin = time.monotonic()
            self.say(f"curves, round {number + 1}")
            for operation in OPERATIONS:
                self.latency_round(operation)
                self.bandwidth_round(operation)
            self.rate_round()
            if time.monotonic() + (time.monotonic() - begin) > self.deadline:
                self.say("no time for another round")
                break

    # --- what one program measures by itself ---
    def google_benchmarks(self):
        """The programs of bench/ that post and poll, on the device; medians of their repetitions by benchmark."""
        found = {}
        for name in sorted(os.listdir(self.bin)):
            if not name.startswith("bench-") or name == "bench-copies":
                continue
            self.say(name)
            command = [os.path.join(self.bin, name)]
            found[name] = self.google_benchmark(name, command)
        return found

    def google_benchmark(self, name, command):
        if self.emulated:
            command = self.qpair.on_nic(self.main_wire(), *command)
        # Each kind of object in a process of its own, so that none gets memory that another one gave back.
        filters = ["memory", "verbs", "connected"] if name == "bench-objects" else [None]
        rows = {}
        for pattern in filters:
            more = [f"--benchmark_filter={pattern}"] if pattern else []
            result = self.attempt(name, lambda: contenders.google_benchmark([*command, *more], self.output))
            for entry in (result or {}).get("benchmarks", []):
                if entry.get("run_type") != "aggregate" and not entry.get("error_occurred"):
                    rows.setdefault(entry["run_name"].split("/")[0] if "ns_per_op" in entry else entry["run_name"], []).append(entry)
        contenders.note(name, contenders.shown(command))
        return {key: summary(entries) for key, entries in rows.items()}

    # --- all of it ---
    def run(self):
        begin, load = time.monotonic(), os.getloadavg()
        self.measure_goals()
        benchmarks = self.google_benchmarks()
        self.measure_curves()
        return {
            "schema": "qpair-bench-report",
            "version": SCHEMA_VERSION,
            "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "quick": self.quick,
            "seconds": round(time.monotonic() - begin),
            "machine": machine(load),
            "device": "emulated" if self.emulated else "real",
            "wires": self.wires,
            "versions": dict({"qpair": git_version()}, **contenders.versions()),
            "missing": self.missing,
            "failures": self.failures,
            "goals": self.judged,
            "benchmarks": benchmarks,
            "figures": [figure.json() for figure in self.figures.values() if figure.values],
            "commands": contenders.commands,
        }


def summary(entries):
    """Of the repetitions of one Google Benchmark: medians of the time and of every counter."""
    known = {"iterations", "repetitions", "repetition_index", "threads", "family_index", "per_family_instance_index", "cpu_time"}
    counters = [name for name, value in entries[0].items() if isinstance(value, (int, float)) and name not in known]
    result = {name: statistics.median(entry[name] for entry in entries) for name in counters}
    return dict(result, time_unit=entries[0]["time_unit"], repetitions=len(entries))


def machine(load_before):
    model, memory = "", 0
    with open("/proc/cpuinfo") as lines:
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    with open("/proc/meminfo") as lines:
        memory = int(next(line for line in lines if line.startswith("MemTotal")).split()[1]) * 1024
    return {"cpus": os.cpu_count(), "model": model, "memory_bytes": memory, "kernel": platform.release(),
            "load_before": round(load_before[0], 2), "load_after": round(os.getloadavg()[0], 2)}


def git_version():
    folder = os.path.dirname(os.path.abspath(__file__))
    described = subprocess.run(["git", "-C", folder, "describe", "--always", "--dirty"], capture_output=True, text=True)
    return described.stdout.strip() if described.returncode == 0 else "unknown"


def main():
    parser = argparse.ArgumentParser(prog="./dev bench", description="Measures qpair and its peers side by side.")
    parser.add_argument("--build", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--output", help="folder of report.json and report.html (default: build/bench)")
    parser.add_argument("--quick", action="store_true", help="about a minute: fewer sizes, one round of the curves")
    parser.add_argument("--minutes", type=float, default=8, help="no further round of the curves after this (default: 8)")
    options = parser.parse_args()
    suite = Suite(options)
    report = suite.run()
    with open(os.path.join(suite.output, "report.json"), "w") as file:
        json.dump(report, file, indent=1)
    page.write(report, os.path.join(suite.output, "report.html"))
    print(goals.table(report["goals"]))
    for program, package in report["missing"].items():
        print(f"missing: {program} (Debian package {package})")
    print(f"{os.path.join(suite.output, 'report.html')} has the figures; {report['seconds']} s")
    # A peer that fails is a pity; qpair that fails is a bug.
    ours = [what for what in report["failures"] if not what.startswith(("UCX", "perftest", "memcpy", "process_vm")) and "the peer" not in what]
    return 1 if ours else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
