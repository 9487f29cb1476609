#!/usr/bin/env python3
"""qpair bench as its users meet it: between two processes, between two "hosts", and when something goes wrong. No test looks
at how fast anything is.

bench.py --qpair PATH [--build FOLDER] [unittest arguments]
"""

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import unittest

QPAIR = None
PATIENCE = 60  # seconds; what takes longer has failed
OPERATIONS = ["put", "get", "put_with_recv", "send", "fetch_add", "compare_swap"]
DOCUMENT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "benchmarks.md")


def clean_environment():
    return {name: value for name, value in os.environ.items() if not name.startswith("QPAIR_NIC_")}


def bench(*arguments):
    return subprocess.run([QPAIR, "bench", *arguments], capture_output=True, text=True, timeout=4 * PATIENCE, env=clean_environment())


def measured(*arguments):
    result = bench("--emulated", "--json", *arguments)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def fields_of(value, path=""):
    """The paths of all leaves: {"results[].ns.median", …}."""
    if isinstance(value, dict):
        return {leaf for name, inner in value.items() for leaf in fields_of(inner, f"{path}.{name}" if path else name)}
    if isinstance(value, list):
        return {leaf for inner in value for leaf in fields_of(inner, path + "[]")}
    return {path}


class Bench(unittest.TestCase):
    def start(self, *arguments):
        process = subprocess.Popen([QPAIR, "bench", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env=clean_environment())
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def children(self, process, count):
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
                children = [int(pid) for pid in file.read().split()]
            if len(children) == count:
                return children
            time.sleep(0.01)
        self.fail(f"it has no {count} children")

    def wait_until(self, condition):
        deadline = time.monotonic() + PATIENCE
        while not condition():
            self.assertLess(time.monotonic(), deadline, "still running")
            time.sleep(0.01)

    def assert_gone(self, pids):
        self.wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))

    def assert_one_line_error(self, result, status, *words):
        self.assertEqual(result.returncode, status, result.stderr)
        self.assertRegex(result.stderr, r"\Aqpair: [^\n]*\n\Z")
        for word in words:
            self.assertIn(word, result.stderr)

    def listen(self, *arguments):
        process = self.start("--listen", "0", "--emulated", *arguments)
        self.assertIn("emulated", process.stdout.readline())
        port = re.search(r"Listening on port (\d+)", process.stdout.readline()).group(1)
        return process, f"localhost:{port}"


class Usage(Bench):
    def test_nonsense_is_one_line_that_says_what_is_allowed(self):
        for arguments, words in [
            (["-o", "push"], ["push", "put_with_recv"]),
            (["--measure", "speed"], ["speed", "latency, pingpong, bandwidth"]),
            (["-s", "8..4"], ["8..4"]),
            (["-s", "many"], ["many", "2..64M"]),
            (["-o", "fetch_add", "-s", "16"], ["8 bytes"]),
            (["-o", "get", "--measure", "pingpong"], ["pingpong"]),
            (["--batch", "0"], ["--batch"]),
            (["--batch", "8", "--window", "4"], ["--window"]),
            (["--qps", "0"], ["--qps"]),
            (["--duration", "5"], ["--duration", "500ms"]),
            (["--window", "0"], ["--window", "1 to"]),
            (["--iterations", "0"], ["--iterations", "1 to"]),
            (["--iterations", "5", "--duration", "1s"], ["--iterations"]),
            (["--memory", "fast"], ["fast", "ordinary"]),
            (["--timeout", "0"], ["--timeout"]),
            (["--once"], ["--listen"]),
            (["--listen", "70000"], ["65535"]),
            (["--listen", "--json"], ["--json"]),
            (["--listen", "1", "host"], ["HOST"]),
            (["host:0"], ["host:0"]),
            (["--emulated", "--address", "127.0.0.1"], ["--listen"]),
        ]:
            with self.subTest(arguments):
                self.assert_one_line_error(bench(*arguments), 2, *words)

    def test_it_listens_on_the_port_that_the_other_side_asks_for(self):
        process = self.start("--listen", "--emulated")
        self.assertIn("emulated", process.stdout.readline())
        self.assertIn("18586", process.stdout.readline() or process.stderr.readline())  # where somebody has it, that

    def test_what_is_not_there(self):
        self.assert_one_line_error(bench("--emulated", "--device", "mlx5_7"), 1, "mlx5_7")
        self.assert_one_line_error(bench("--emulated", "-s", "1024G"), 1, "available", "--size")
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            self.assert_one_line_error(bench(f"127.0.0.1:{closed.getsockname()[1]}"), 1, "refused", "--listen")


class TwoProcesses(Bench):
    def test_every_operation_arrives_and_is_counted(self):
        for operation in OPERATIONS:
            with self.subTest(operation):
                sizes = [8] if operation in ("fetch_add", "compare_swap") else [1, 8, 5000, 100_000]
                report = measured("-o", operation, "-s", ",".join(map(str, sizes)), "-n", "150", "--check")
                self.assertEqual([(r["measure"], r["size"], r["operations"]) for r in report["results"]],
                                 [(m, s, 150) for m in ("latency", "bandwidth") for s in sizes])
                self.assertTrue(report["parameters"]["checked"])
                self.assertTrue(report["device"]["emulated"])

    def test_nothing_at_all_can_be_moved(self):
        for operation in ("put", "get", "send", "put_with_recv"):
            with self.subTest(operation):
                self.assertEqual(measured("-o", operation, "-s", "0", "-n", "20", "--check")["results"][1]["operations"], 20)

    def test_pings_are_answered(self):
        report = measured("--measure", "pingpong", "-s", "1,64,9000", "-n", "300", "--check")
        self.assertEqual([(r["measure"], r["operations"]) for r in report["results"]], [("pingpong", 300)] * 3)

    def test_batches_and_many_queue_pairs(self):
        for operation in ("put", "send", "fetch_add"):
            with self.subTest(operation):
                report = measured("-o", operation, "-s", "8", "--measure", "bandwidth", "--qps", "20", "--batch", "7", "--window", "16",
                                  "-n", "1000", "--check")
                self.assertEqual(report["results"][0]["operations"], 1000)
                self.assertEqual(report["results"][0]["under_way"], 16)

    def test_ordinary_memory(self):
        self.assertEqual(measured("--memory", "ordinary", "-s", "100000", "-n", "50", "--check")["parameters"]["memory"], "ordinary")

    def test_for_a_time(self):
        for result in measured("-s", "8", "--duration", "20ms")["results"]:
            self.assertGreaterEqual(result["operations"], 5)
            self.assertGreater(result["elapsed_ns"], 0)

    def test_percentiles_are_in_order(self):
        for result in measured("-s", "8", "-n", "500", "--measure", "latency")["results"]:
            ns = result["ns"]
            self.assertLessEqual(0, ns["min"])
            values = [ns[name] for name in ("min", "median", "p99", "p999", "max")]
            self.assertEqual(values, sorted(values))

    def test_on_a_bad_network(self):
        report = measured(*"-s 8,20000 -n 100 --check --loss 1% --duplicate 1% --reorder 1% --seed 7 --quiet".split())
        self.assertEqual(len(report["results"]), 4)

    def test_for_people(self):
        result = bench("--emulated", "-s", "8,4K", "-n", "20", "--check")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr, "")
        self.assertRegex(result.stdout, r"(?m)^8 B +20 +\S+ .s ")
        self.assertRegex(result.stdout, r"(?m)^4 KiB +20 +64 +\S+ .B/s ")
        self.assertIn("checked", result.stdout)

    def test_the_json_has_the_documented_fields_and_no_others(self):
        report = measured("-s", "8", "-n", "20", "--measure", "latency,pingpong,bandwidth")
        self.assertEqual((report["schema"], report["version"]), ("qpair-bench", 1))
        with open(DOCUMENT) as file:
            section = file.read().split("## The JSON of `qpair bench`")[1].split("\n## ")[0]
        documented = set(re.findall(r"(?m)^\| `([^`]+)` \|", section))
        self.assertEqual(fields_of(report), documented)


class TwoHosts(Bench):
    def test_one_listens_and_the_other_measures(self):
        for operation in ("put", "send"):
            with self.subTest(operation):
                listener, where = self.listen("--once")
                report = measured(where, "-o", operation, "-s", "8,100000", "-n", "50", "--check")
                self.assertEqual(report["peer"]["where"], where)
                output, errors = listener.communicate(timeout=PATIENCE)
                self.assertEqual(listener.returncode, 0, errors)
                self.assertRegex(output, rf"port \d+: {operation}\n")

    def test_a_listener_serves_one_after_another_and_outlives_strangers(self):
        listener, where = self.listen("--timeout", "1")
        for words in (b"GET / HTTP/1.1\r\n\r\n", b'{"event": "plan"}\n', b'{"event": "plan", "protocol": 1, "plan": {}}\n', b"[1]\n", b""):
            with socket.create_connection(where.split(":")) as stranger:
                stranger.sendall(words)
                stranger.shutdown(socket.SHUT_WR)
                stranger.settimeout(PATIENCE)
                while stranger.recv(4096):
                    pass
            self.assertIn("failed: ", listener.stdout.readline())
        measured(where, "-s", "8", "-n", "20")
        measured(where, "-s", "8", "-n", "20")
        listener.send_signal(signal.SIGINT)
        self.assertEqual(listener.wait(PATIENCE), 130)

    def test_another_version_is_named(self):
        listener, where = self.listen("--once")
        with socket.create_connection(where.split(":")) as stranger:
            stranger.sendall(b'{"event": "plan", "protocol": 99, "plan": {}}\n')
            answer = json.loads(stranger.makefile().readline())
        self.assertEqual(answer["event"], "failed")
        self.assertIn("99", answer["message"])
        self.assertEqual(listener.wait(PATIENCE), 1)

    def test_a_listener_that_dies_ends_the_measurement(self):
        listener, where = self.listen()
        process = self.start(where, "--emulated", "--quiet", "-s", "8", "--measure", "bandwidth", "-n", "100000000")
        self.children(listener, 1)
        self.children(process, 1)
        listener.kill()
        output, errors = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 1)
        self.assertRegex(errors, r"(?m)^qpair: ")

    def test_a_port_that_is_taken(self):
        with socket.create_server(("", 0)) as taken:
            self.assert_one_line_error(bench("--listen", str(taken.getsockname()[1]), "--emulated"), 1, "in use")


class Ends(Bench):
    """However it ends, nothing is left."""

    def endless(self, *more):
        process = self.start("--emulated", "--quiet", "-s", "8", "--measure", "bandwidth", "-n", "100000000", *more)
        return process, self.children(process, 2)

    def test_a_killed_process_is_named(self):
        for index, name in ((0, "target"), (1, "initiator")):
            with self.subTest(name):
                process, children = self.endless()
                os.kill(children[index], signal.SIGKILL)
                output, errors = process.communicate(timeout=PATIENCE)
                self.assertEqual(process.returncode, 1)
                self.assertIn(f"qpair: the {name} was killed by signal 9", errors)
                self.assert_gone(children)

    def test_a_killed_process_is_named_though_the_other_has_failed_for_it_before_anybody_looked(self):
        def has_ended(pid):
            with open(f"/proc/{pid}/stat") as stat:
                return stat.read().rpartition(")")[2].split()[0] == "Z"

        for index, name in ((0, "target"), (1, "initiator")):
            with self.subTest(name):
                process, children = self.endless()
                os.kill(process.pid, signal.SIGSTOP)
                os.kill(children[index], signal.SIGKILL)
                self.wait_until(lambda: all(map(has_ended, children)))
                os.kill(process.pid, signal.SIGCONT)
                output, errors = process.communicate(timeout=PATIENCE)
                self.assertEqual(process.returncode, 1)
                self.assertIn(f"qpair: the {name} was killed by signal 9", errors)

    def test_a_stopped_target_is_given_up(self):
        process, children = self.endless("--timeout", "1")
        os.kill(children[0], signal.SIGSTOP)
        output, errors = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 1)
        self.assertRegex(errors, r"(?m)^qpair: ")
        self.assert_gone(children)

    def test_an_interrupt_ends_all(self):
        process, children = self.endless()
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=PATIENCE)
        self.assertEqual((process.returncode, output.count("{")), (130, 0), errors)
        self.assert_gone(children)

    def test_a_killed_bench_leaves_no_processes(self):
        process, children = self.endless()
        process.kill()
        process.wait()
        self.assert_gone(children)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--qpair", required=True)
    parser.add_argument("--build")
    options, rest = parser.parse_known_args()
    QPAIR = os.path.abspath(options.qpair)
    unittest.main(argv=sys.argv[:1] + rest)
