#!/usr/bin/env python3
"""The timeline of `qpair run --trace`: what is in it, in which order, and that it stays readable whatever happens.

trace.py --qpair PATH --build FOLDER [unittest arguments]
"""

import argparse
import collections
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

QPAIR = None
BUILD = None
PATIENCE = 60  # seconds; what takes longer has failed


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def is_listening(port):
    """Without connecting, which the server would take for its client."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table, encoding="ascii") as file:
            for line in file.readlines()[1:]:
                _, local, _, state = line.split()[:4]
                if state == "0A" and int(local.rsplit(":", 1)[1], 16) == int(port):
                    return True
    return False


def events_of(path):
    """As a reader that takes the file as it is: an array that nobody has closed."""
    with open(path, encoding="utf8") as file:
        text = file.read()
    return json.loads(text.rstrip().rstrip(",") + "]")


class Timeline:
    def __init__(self, events):
        self.events = events
        self.names = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
        self.threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}

    def find(self, name, **wanted):
        """Events with that name, by what they have and what is among their arguments, the earliest first."""
        found = []
        for event in self.events:
            have = {**event.get("args", {}), **{k: event.get(k) for k in ("pid", "tid", "ph", "id", "cat")}}
            if event["name"] == name and all(have.get(key) == value for key, value in wanted.items()):
                found.append(event)
        return sorted(found, key=lambda event: event.get("ts", 0))

    def flow_at(self, packet, ph):
        (flow,) = [e for e in self.events if e["ph"] == ph and e["cat"] == "packet" and
                   (e["pid"], e["tid"], e["ts"]) == (packet["pid"], packet["tid"], packet["ts"])]
        return flow["id"]

    def arrival_of(self, packet):
        """Where and when a packet that was sent arrives, by the arrow."""
        flow = self.flow_at(packet, "s")
        (arrow,) = [e for e in self.events if e["ph"] == "f" and e["cat"] == "packet" and e["id"] == flow]
        (arrived,) = [e for e in self.events if e["ph"] == "X" and e["cat"] == "packet" and
                      (e["pid"], e["tid"], e["ts"]) == (arrow["pid"], arrow["tid"], arrow["ts"])]
        return arrived


class Trace(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="qpair-trace-")
        self.addCleanup(shutil.rmtree, self.folder)
        self.path = os.path.join(self.folder, "trace.json")

    def start(self, *command, trace=None, **keywords):
        process = subprocess.Popen([QPAIR, "run", "--quiet", f"--trace={trace or self.path}", "--", *command],
                                   stdout=subprocess.DEVNULL, **keywords)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def pingpong(self, count, trace=None):
        command = ["ibv_rc_pingpong", "-g", "3", "-n", str(count), "-p", free_port()]
        server = self.start(*command, trace=trace)
        deadline = time.monotonic() + PATIENCE
        while not is_listening(command[-1]) and time.monotonic() < deadline:
            time.sleep(0.02)
        return server, self.start(*command, "localhost", trace=trace)

    def assert_in_order(self, *events):
        times = [event["ts"] for event in events]
        self.assertEqual(times, sorted(times), [event["name"] for event in events])

    def test_a_put_from_doorbell_to_poll(self):
        program = os.path.join(BUILD, "bin", "integration-counters")
        result = subprocess.run([QPAIR, "run", f"--trace={self.path}", "--", program,
                                 "--gtest_filter=Counters.EveryWayToOpenAFileShowsTheValueOfThatMoment"],
                                capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        timeline = Timeline(events_of(self.path))
        self.assertEqual(len(timeline.names), 1)
        ((pid, name),) = timeline.names.items()
        self.assertRegex(name, r"^integration-cou 127\.71\.\d+\.\d+$")
        self.assertEqual(len(timeline.threads), 2)
        for (owner, qpn), thread in timeline.threads.items():
            self.assertEqual((owner, thread), (pid, f"QP {qpn:#x} RC"))
        fetches = timeline.find("fetch", opcode="RDMA WRITE")
        self.assertEqual([fetch["args"]["bytes"] for fetch in fetches], [64, 64, 64])

        fetch = fetches[0]
        requester, wqe = fetch["tid"], fetch["args"]["wqe"]
        self.assertEqual((fetch["pid"], wqe), (pid, 0))
        (doorbell,) = timeline.find("doorbell", tid=requester, wqe=wqe)
        (sent, *_) = timeline.find("RDMA WRITE Only", tid=requester, direction="sent", wqe=wqe)
        self.assertEqual(sent["args"]["bytes"], 64)
        arrived = timeline.arrival_of(sent)
        responder = arrived["tid"]
        self.assertNotEqual(responder, requester)
        self.assertEqual((arrived["args"]["psn"], arrived["args"]["direction"]), (sent["args"]["psn"], "received"))
        (answer, *_) = timeline.find("Acknowledge", tid=responder, direction="sent", psn=sent["args"]["psn"])
        answered = timeline.arrival_of(answer)
        self.assertEqual(answered["tid"], requester)
        (cqe,) = timeline.find("CQE", tid=requester, wqe=wqe, queue="send")
        (poll,) = timeline.find("poll", tid=requester, wqe=wqe, queue="send")
        self.assert_in_order(doorbell, fetch, sent, arrived, answer, answered, cqe, poll)
        # The completion entry is written while the acknowledgment is dealt with.
        self.assertLessEqual(cqe["ts"] + cqe["dur"], answered["ts"] + answered["dur"])

        spans = [e for e in timeline.events if e["ph"] in "be" and e["tid"] == requester]
        self.assertEqual([e["ph"] for e in spans], ["b", "e"] * 3)
        self.assertEqual(spans[0]["name"], "RDMA WRITE 64 B")
        self.assertEqual(spans[0]["id"], spans[1]["id"])
        arrows = [e["ph"] for e in timeline.events if e["name"] == "wqe" and e["id"] == spans[0]["id"]]
        self.assertEqual((arrows[0], set(arrows[1:-1]), arrows[-1]), ("s", {"t"}, "f"))

    def test_two_processes_in_one_file(self):
        server, client = self.pingpong(10)
        self.assertEqual((client.wait(PATIENCE), server.wait(PATIENCE)), (0, 0))
        timeline = Timeline(events_of(self.path))
        self.assertEqual(set(timeline.names), {server.pid, client.pid})
        for name in timeline.names.values():
            self.assertRegex(name, r"^ibv_rc_pingpong 127\.71\.\d+\.\d+$")
        for ours, theirs in ((client.pid, server.pid), (server.pid, client.pid)):
            self.assertEqual(len(timeline.find("fetch", pid=ours, opcode="SEND")), 10)
            self.assertEqual(len(timeline.find("CQE", pid=ours, queue="receive")), 10)
            self.assertEqual(len(timeline.find("receive taken", pid=ours)), 10)
            # Messages of 4096 bytes; what is sent again because the machine is busy has the same arrow.
            firsts = {e["args"]["psn"]: e for e in reversed(timeline.find("SEND First", pid=ours, direction="sent"))}
            self.assertEqual(len(firsts), 10)
            for packet in list(firsts.values())[:1]:
                flow = timeline.flow_at(packet, "s")
                arrows = [e for e in timeline.events if e["ph"] == "f" and e.get("id") == flow]
                self.assertEqual({arrow["pid"] for arrow in arrows}, {theirs})
                self.assertGreater(min(arrow["ts"] for arrow in arrows), packet["ts"])

    def test_a_file_for_each_process(self):
        server, client = self.pingpong(3, trace=os.path.join(self.folder, "trace-%p.json"))
        self.assertEqual((client.wait(PATIENCE), server.wait(PATIENCE)), (0, 0))
        self.assertEqual(set(os.listdir(self.folder)), {f"trace-{server.pid}.json", f"trace-{client.pid}.json"})
        for pid in (server.pid, client.pid):
            self.assertEqual(set(Timeline(events_of(os.path.join(self.folder, f"trace-{pid}.json"))).names), {pid})

    def test_a_killed_process_leaves_what_there_was(self):
        server, client = self.pingpong(100_000_000)
        deadline = time.monotonic() + PATIENCE
        while not (os.path.exists(self.path) and os.path.getsize(self.path) > 100_000) and time.monotonic() < deadline:
            time.sleep(0.02)
        client.send_signal(signal.SIGKILL)
        server.send_signal(signal.SIGKILL)
        client.wait()
        server.wait()
        with open(self.path, encoding="utf8") as file:
            lines = file.read().split("\n")
        self.assertEqual(lines[0], "[")
        kinds = collections.Counter()
        for line in lines[1:-2]:  # a kill may cut the last one
            kinds[json.loads(line.rstrip(","))["ph"]] += 1
        self.assertGreater(kinds["X"], 100)

    def test_what_is_no_trace_is_left_alone(self):
        with open(self.path, "w", encoding="utf8") as file:
            file.write("my notes\n")
        result = subprocess.run([QPAIR, "run", "--trace", self.path, "--", "ibv_devices"], capture_output=True,
                                text=True, timeout=PATIENCE)
        self.assertEqual(result.returncode, 0)
        self.assertIn("mlx5_0", result.stdout)
        self.assertRegex(result.stderr, rf"will not trace to '{re.escape(self.path)}'")
        with open(self.path, encoding="utf8") as file:
            self.assertEqual(file.read(), "my notes\n")

    def test_lost_packets_and_errors_are_in_it(self):
        command = [QPAIR, "run", "--quiet", "--loss", "20%", "--seed", "3", f"--trace={self.path}", "--",
                   os.path.join(BUILD, "bin", "integration-counters"), "--gtest_filter=Counters.Writes*:Counters.ARef*"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        timeline = Timeline(events_of(self.path))
        sent = [e["id"] for e in timeline.events if e["ph"] == "s" and e["cat"] == "packet"]
        arrived = [e["id"] for e in timeline.events if e["ph"] == "f" and e["cat"] == "packet"]
        self.assertLess(len(arrived), len(sent))
        self.assertTrue(timeline.find("NAK", direction="received"))
        self.assertEqual(len(timeline.find("error CQE", queue="send")), 2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--qpair", required=True)
    parser.add_argument("--build", required=True)
    options, rest = parser.parse_known_args()
    QPAIR, BUILD = os.path.abspath(options.qpair), options.build
    unittest.main(argv=sys.argv[:1] + rest)
