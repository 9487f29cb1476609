#!/usr/bin/env python3
"""qpair top while unmodified programs run on the emulated NIC, and after they were killed.

top.py --qpair PATH [--build FOLDER] [unittest arguments]
"""

import argparse
import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import time
import unittest

QPAIR = None
PATIENCE = 30  # seconds; what takes longer has failed


def quiet_environment():
    return dict(os.environ, QPAIR_NIC_QUIET="1")


def top(*arguments):
    return subprocess.run([QPAIR, "top", *arguments], capture_output=True, text=True, timeout=60)


def reading(pid):
    """The counters of one process's NIC, or None when it has none."""
    result = top("--once", "--json", "--interval", "20ms", "--nic", str(pid))
    return json.loads(result.stdout)["nics"][0] if result.returncode == 0 and '"pid"' in result.stdout else None


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Programs(unittest.TestCase):
    def start(self, *command):
        process = subprocess.Popen([QPAIR, "run", "--", *command], env=quiet_environment(),
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def eventually(self, condition):
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            result = condition()
            if result:
                return result
            time.sleep(0.02)
        self.fail("it did not happen")

    def pingpong(self):
        """A server and a client that exchange messages until they are killed."""
        port = str(free_port())
        command = ["ibv_rc_pingpong", "-g", "3", "-n", "100000000", "-p", port]
        server = self.start(*command)
        self.eventually(lambda: (reading(server.pid) or {}).get("queue_pairs") == 1)
        client = self.start(*command, "localhost")
        self.eventually(lambda: (reading(client.pid) or {"counters": {"send_wqes": 0}})["counters"]["send_wqes"] > 100)
        return server, client


class Top(Programs):
    def test_two_programs_that_exchange_messages(self):
        server, client = self.pingpong()
        for process, other in (client, server), (server, client):
            nic, peer = reading(process.pid), reading(other.pid)
            self.assertEqual((nic["pid"], nic["process"]), (process.pid, "ibv_rc_pingpong"))
            self.assertRegex(nic["address"], r"^127\.71\.\d+\.\d+$")
            self.assertEqual((nic["queue_pairs"], nic["unlisted_queue_pairs"]), (1, 0))
            (queue_pair,) = nic["listed"]
            self.assertEqual((queue_pair["type"], queue_pair["state"]), ("RC", "RTS"))
            self.assertEqual(queue_pair["peer_qpn"], peer["listed"][0]["qpn"])
            counted = queue_pair["counters"]
            # It answers every message, and each is 4096 bytes in packets of 1024 at most.
            self.assertAlmostEqual(counted["send_wqes"], counted["receive_wqes"], delta=1)
            self.assertGreaterEqual(counted["bytes_received"], 4096 * counted["receive_wqes"])
            self.assertGreaterEqual(counted["packets_received"], 4 * counted["receive_wqes"])
            self.assertEqual(counted["req_cqe_error"], 0)
            self.eventually(lambda: reading(process.pid)["rates"]["wqes_per_second"] > 0)
            self.eventually(lambda: reading(process.pid)["rates"]["bytes_sent_per_second"] > 0)
        text = top("--once", "--interval", "50ms")
        self.assertEqual(text.returncode, 0, text.stderr)
        self.assertRegex(text.stdout, rf"(?m)^{client.pid} ibv_rc_pingpong 127\.71\.\S+ +1 ")
        self.assertRegex(text.stdout, rf"(?m)^{server.pid} ibv_rc_pingpong 127\.71\.\S+ +1 ")

    def test_a_killed_program_is_gone_and_leaves_nothing(self):
        _, client = self.pingpong()
        bystander = self.start("ibv_rc_pingpong", "-g", "3", "-p", str(free_port()))
        self.eventually(lambda: reading(bystander.pid) is not None)
        client.send_signal(signal.SIGKILL)
        client.wait()
        self.assertIsNone(reading(client.pid))
        self.assertIsNotNone(reading(bystander.pid))
        result = top("--once", "--interval", "20ms", "--nic", str(client.pid))
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, rf"^qpair: process {client.pid} has no emulated NIC")

    def test_a_stopped_program_is_still_shown(self):
        server, client = self.pingpong()
        client.send_signal(signal.SIGSTOP)
        self.assertGreater(reading(client.pid)["counters"]["send_wqes"], 100)
        client.send_signal(signal.SIGCONT)

    def test_a_process_without_a_nic_is_not_shown(self):
        result = top("--once", "--interval", "20ms", "--nic", str(os.getpid()))
        self.assertEqual(result.returncode, 1)
        listed = json.loads(top("--once", "--json", "--interval", "20ms").stdout)["nics"]
        self.assertNotIn(os.getpid(), [nic["pid"] for nic in listed])

    def test_readings_follow_each_other_until_the_nic_ends(self):
        server, _ = self.pingpong()
        process = subprocess.Popen([QPAIR, "top", "--json", "--interval", "50ms", "--nic", str(server.pid)],
                                   stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.stdout.close)
        sent = lambda: json.loads(process.stdout.readline())["nics"][0]["counters"]["packets_sent"]
        before = sent()
        self.eventually(lambda: sent() > before)
        server.kill()
        server.wait()
        self.assertEqual(process.wait(PATIENCE), 0)

    def test_on_a_terminal_q_ends_it_and_the_terminal_is_as_before(self):
        server, _ = self.pingpong()
        pid, terminal = pty.fork()
        if pid == 0:
            os.execv(QPAIR, [QPAIR, "top", "--interval", "50ms"])
        output = b""

        def read_more():
            nonlocal output
            while select.select([terminal], [], [], 0)[0]:
                try:
                    output += os.read(terminal, 4096)
                except OSError:  # the other side is closed
                    return

        def drawn_twice():
            read_more()
            return output.count(b"\x1b[H") >= 2 and f"{server.pid} ibv_rc_pingpong".encode() in output

        self.eventually(drawn_twice)
        self.assertIn(b"\x1b[?25l", output)
        os.write(terminal, b"q")
        status = self.eventually(lambda: (read_more(), os.waitpid(pid, os.WNOHANG))[1][0] and [True])
        self.assertTrue(status)
        read_more()
        self.assertIn(b"\x1b[?25h", output)
        os.close(terminal)

    def test_nonsense_is_one_line_and_status_2(self):
        for arguments in (["--interval", "0"], ["--interval", "1"], ["--nic", "-1"], ["--nic", "x"], ["extra"]):
            with self.subTest(arguments):
                result = top(*arguments)
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertEqual(len(result.stderr.splitlines()), 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--qpair", required=True)
    parser.add_argument("--build")
    options, rest = parser.parse_known_args()
    QPAIR = os.path.abspath(options.qpair)
    unittest.main(argv=sys.argv[:1] + rest)
