#!/usr/bin/env python3
"""The command line as its users meet it: what it prints, how it exits, what it leaves behind (nothing).

cli.py --qpair PATH [--build FOLDER] [unittest arguments]
"""

import argparse
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

QPAIR = None
COMMANDS = ["demo", "run", "env", "devices", "bench", "doctor", "top"]
NIC_VARIABLES = ["LD_PRELOAD"] + [
    "QPAIR_NIC_" + name
    for name in "MTU ADDRESS INTERFACE LOSS DUPLICATE REORDER DELAY SEED CAPTURE TRACE STRICT QUIET".split()
]


def clean_environment(**changes):
    environment = {name: value for name, value in os.environ.items() if name not in NIC_VARIABLES}
    environment.update(changes)
    return environment


def qpair(*arguments, timeout=60, **keywords):
    keywords.setdefault("env", clean_environment())
    return subprocess.run([QPAIR, *arguments], capture_output=True, text=True, timeout=timeout, **keywords)


class CommandLine(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="qpair-cli-")
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, name, content=None):
        path = os.path.join(self.folder, name)
        if content is not None:
            with open(path, "wb") as file:
                file.write(content)
        return path

    def assert_one_line_error(self, result, status, *words):
        self.assertEqual(result.returncode, status, result.stderr)
        lines = result.stderr.splitlines()
        self.assertEqual(len(lines), 1, result.stderr)
        self.assertTrue(lines[0].startswith("qpair: "), lines[0])
        for word in words:
            self.assertIn(word, lines[0])


class Usage(CommandLine):
    def test_help_is_everywhere_and_has_examples(self):
        for command in [[]] + [[name] for name in COMMANDS]:
            result = qpair(*command, "--help")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("Examples:", result.stdout)
            self.assertNotIn("demo-worker", result.stdout)
            self.assertNotIn("bench-target", result.stdout)
            self.assertEqual(result.stderr, "")

    def test_version(self):
        result = qpair("--version")
        self.assertEqual(result.returncode, 0)
        self.assertRegex(result.stdout, r"^qpair \d+\.\d+\.\d+\n$")

    def test_nonsense_is_one_line_and_status_2(self):
        for arguments in [
            [],
            ["frobnicate"],
            ["devices", "--frobnicate"],
            ["run"],
            ["run", "--"],
            ["run", "--frobnicate", "--", "true"],
            ["run", "--mtu"],
            ["demo", "--processes", "1"],
            ["demo", "--processes", "x"],
            ["demo", "extra"],
            ["demo", "--size", "0"],
            ["demo", "--size", "many"],
            ["demo", "--timeout", "0"],
            ["demo", "--address", "127.0.0.1"],
        ]:
            with self.subTest(arguments):
                self.assert_one_line_error(qpair(*arguments), 2)

    def test_every_option_of_the_nic_is_checked_and_the_error_says_what_is_allowed(self):
        for option, value, words in [
            ("--mtu", "1500", ["1500", "4096"]),
            ("--link-layer", "token-ring", ["token-ring", "infiniband"]),
            ("--loss", "2", ["'2'", "1%"]),
            ("--duplicate", "-1%", ["--duplicate"]),
            ("--reorder", "often", ["often", "1%"]),
            ("--delay", "5", ["'5'", "50us"]),
            ("--delay", "11s", ["10s"]),
            ("--seed", "seven", ["seven", "2^64"]),
            ("--seed", "18446744073709551616", ["2^64"]),
            ("--address", "localhost", ["localhost", "address"]),
            ("--interface", "nosuchif", ["nosuchif", "ip link"]),
            ("--capture", self.folder, ["directory"]),
            ("--capture", self.path("missing/a.pcapng"), ["missing"]),
            ("--trace", self.folder, ["directory"]),
            ("--trace", self.path("missing/a.json"), ["missing"]),
        ]:
            for command in (["run"], ["env"]):
                with self.subTest([command, option, value]):
                    tail = ["--", "true"] if command == ["run"] else []
                    self.assert_one_line_error(qpair(*command, f"{option}={value}", *tail), 2, option, *words)

    def test_a_wrong_variable_is_found_before_the_program_starts(self):
        result = qpair("run", "--", "true", env=clean_environment(QPAIR_NIC_LOSS="much"))
        self.assert_one_line_error(result, 2, "much")


class Run(CommandLine):
    def variables_of(self, *arguments, **changes):
        result = qpair("run", *arguments, "--", "env", "-0", env=clean_environment(**changes))
        self.assertEqual(result.returncode, 0, result.stderr)
        return dict(entry.split("=", 1) for entry in result.stdout.split("\0") if "=" in entry)

    def test_sets_what_the_nic_reads(self):
        capture, trace = self.path("packets.pcapng"), self.path("timeline-%p.json")
        variables = self.variables_of(
            *"--mtu 1024 --link-layer infiniband --loss 1% --duplicate 0.02 --reorder 3% --delay 50us --seed 7 --strict --quiet".split(),
            f"--capture={capture}", f"--trace={trace}", "--address=127.0.0.9",
        )
        self.assertEqual(variables["QPAIR_NIC_MTU"], "1024")
        self.assertEqual(variables["QPAIR_NIC_LINK_LAYER"], "infiniband")
        self.assertEqual(variables["QPAIR_NIC_LOSS"], "1%")
        self.assertEqual(variables["QPAIR_NIC_DUPLICATE"], "0.02")
        self.assertEqual(variables["QPAIR_NIC_REORDER"], "3%")
        self.assertEqual(variables["QPAIR_NIC_DELAY"], "50us")
        self.assertEqual(variables["QPAIR_NIC_SEED"], "7")
        self.assertEqual(variables["QPAIR_NIC_STRICT"], "1")
        self.assertEqual(variables["QPAIR_NIC_QUIET"], "1")
        self.assertEqual(variables["QPAIR_NIC_CAPTURE"], capture)
        self.assertEqual(variables["QPAIR_NIC_TRACE"], trace)
        self.assertEqual(variables["QPAIR_NIC_ADDRESS"], "127.0.0.9")
        self.assertRegex(variables["LD_PRELOAD"], r"/libqpair-softnic\.so$")

    def test_sets_nothing_that_was_not_asked_for(self):
        variables = self.variables_of()
        self.assertEqual([name for name in variables if name.startswith("QPAIR_NIC_")], [])

    def test_keeps_what_is_preloaded_already(self):
        sanitizer = os.environ.get("LD_PRELOAD")  # which has to stay the first
        variables = self.variables_of(LD_PRELOAD=f"{sanitizer}:libc.so.6" if sanitizer else "libc.so.6")
        self.assertRegex(variables["LD_PRELOAD"], r"/libqpair-softnic\.so:libc\.so\.6$")

    def test_inside_itself_keeps_what_was_said_outside(self):
        result = qpair("run", "--loss", "1%", "--", QPAIR, "run", "--mtu", "256", "--", "env")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("QPAIR_NIC_LOSS=1%\n", result.stdout)
        self.assertIn("QPAIR_NIC_MTU=256\n", result.stdout)
        preload = [line for line in result.stdout.splitlines() if line.startswith("LD_PRELOAD=")]
        self.assertEqual(preload[0].count("libqpair-softnic.so"), 1)

    def test_makes_the_capture_absolute(self):
        result = qpair("run", "--capture", "here.pcapng", "--", "printenv", "QPAIR_NIC_CAPTURE", cwd=self.folder)
        self.assertEqual(result.stdout, os.path.join(os.path.realpath(self.folder), "here.pcapng") + "\n")

    def test_becomes_the_program(self):
        self.assertEqual(qpair("run", "--", sys.executable, "-c", "exit(7)").returncode, 7)
        killed = qpair("run", "--", sys.executable, "-c", "import os; os.kill(os.getpid(), 9)")
        self.assertEqual(killed.returncode, -9)

    def test_passes_the_programs_options_on_untouched(self):
        script = "import sys; print(sys.argv[1:])"
        for dashes in (["--"], []):
            arguments = ["--mtu", "9", "--", "devices", "", "a b"]
            result = qpair("run", "--mtu", "256", *dashes, sys.executable, "-c", script, *arguments)
            self.assertEqual(result.stdout, f"{arguments}\n", result.stderr)

    def test_status_127_and_126_as_of_a_shell(self):
        self.assert_one_line_error(qpair("run", "--", "no-such-program"), 127, "no-such-program", "PATH")
        self.assert_one_line_error(qpair("run", "--", "./no-such-file"), 127, "./no-such-file")
        plain = self.path("plain", b"text")
        os.chmod(plain, 0o644)
        self.assert_one_line_error(qpair("run", "--", plain), 126, plain)
        self.assert_one_line_error(qpair("run", "--", self.folder), 126, self.folder)

    def test_says_when_a_program_cannot_see_the_nic(self):
        source, binary = self.path("static.c", b"int main(void) { return 7; }"), self.path("static")
        subprocess.run(["cc", "-static", "-o", binary, source], check=True, env=clean_environment())
        self.assert_one_line_error(qpair("run", "--", binary), 7, binary, "statically linked")

    def test_an_address_in_use_or_of_another_machine_is_said_at_once(self):
        holder = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(holder.close)
        holder.bind(("127.99.0.1", 4791))
        self.assert_one_line_error(qpair("run", "--address", "127.99.0.1", "--", "true"), 1, "127.99.0.1", "in use")
        self.assert_one_line_error(qpair("run", "--address", "192.0.2.1", "--", "true"), 1, "192.0.2.1", "not an address")


class Env(CommandLine):
    def test_is_what_run_sets_as_words_of_a_shell(self):
        capture = self.path("it's here.pcapng")
        printed = qpair("env", "--loss", "1%", "--capture", capture)
        self.assertEqual(printed.returncode, 0, printed.stderr)
        script = printed.stdout + '\nprintf "%s\\n" "$QPAIR_NIC_LOSS" "$QPAIR_NIC_CAPTURE"; unset LD_PRELOAD'
        shell = subprocess.run(["sh", "-c", script], capture_output=True, text=True, env=clean_environment())
        self.assertEqual(shell.stdout, f"1%\n{capture}\n", shell.stderr)
        run = qpair("run", "--loss", "1%", "--capture", capture, "--", "printenv", "LD_PRELOAD")
        self.assertIn(run.stdout.strip(), printed.stdout)


class Devices(CommandLine):
    def test_the_emulated_one_is_an_active_connectx_7(self):
        result = qpair("devices", "--emulated", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        (device,) = json.loads(result.stdout)
        self.assertEqual(device["name"], "mlx5_0")
        self.assertEqual(device["vendor_id"], 0x02C9)
        self.assertEqual(device["vendor_part_id"], 4129)
        self.assertTrue(device["mlx5"])
        self.assertEqual(len(device["ports"]), 1)

    def test_text_says_that_it_is_emulated(self):
        result = qpair("devices", "--emulated")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("mlx5_0  (emulated)", result.stdout)
        self.assertIn("ACTIVE", result.stdout)
        self.assertRegex(result.stdout, r"GID 3 +\S*127\.71\.\d+\.\d+ .*\(default\)")

    @unittest.skipIf(os.path.isdir("/sys/class/infiniband") and os.listdir("/sys/class/infiniband"), "has RDMA devices")
    def test_none_is_an_error_that_names_the_way_out(self):
        self.assert_one_line_error(qpair("devices"), 1, "no RDMA device", "--emulated")
        result = qpair("devices", "--json")
        self.assert_one_line_error(result, 1, "no RDMA device")
        self.assertEqual(json.loads(result.stdout), [])


class Doctor(CommandLine):
    def test_the_emulated_nic_is_healthy(self):
        result = qpair("doctor", "--emulated", "--json")
        report = json.loads(result.stdout)
        failed = [check for check in report["checks"] if check["status"] == "fail"]
        self.assertEqual(failed, [])
        self.assertTrue(report["healthy"])
        self.assertEqual(result.returncode, 0)
        self.assertIn("mlx5_0:1 put", [check["check"] for check in report["checks"]])

    @unittest.skipIf(os.path.isdir("/dev/infiniband"), "has RDMA devices")
    def test_without_a_device_it_fails_and_says_what_to_do(self):
        result = qpair("doctor")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stdout, r"(?m)^fail +/dev/infiniband +does not exist$")
        self.assertIn("qpair doctor --emulated", result.stdout)
        for line in result.stdout.splitlines():
            self.assertRegex(line, r"^(ok  |warn|fail|    )  ")


class Demo(CommandLine):
    def children_of(self, pid):
        try:
            with open(f"/proc/{pid}/task/{pid}/children") as file:
                return [int(child) for child in file.read().split()]
        except FileNotFoundError:
            return []

    def start(self, *arguments):
        process = subprocess.Popen([QPAIR, "demo", "--emulated", *arguments], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, env=clean_environment())
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def wait_for_children(self, process, count):
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and process.poll() is None:
            children = self.children_of(process.pid)
            if len(children) == count:
                return children
            time.sleep(0.01)
        self.fail(f"the demo did not start {count} processes")

    def assert_gone(self, pids):
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            alive = [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
            if not alive:
                return
            time.sleep(0.01)
        self.fail(f"still running: {alive}")

    def test_moves_a_file_and_reports(self):
        result = qpair("demo", "--emulated", "--file", self.path("data", os.urandom(3_000_001)), timeout=120)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr, "")
        for operation in ("get", "put", "put_with_recv", "enqueue_put"):
            self.assertRegex(result.stdout, rf"(?m)^{operation} +.* [1-9]\d* .*s .*s .*B/s$")
        self.assertIn("2 workers", result.stdout)
        self.assertIn("Every byte was checked", result.stdout)

    def test_one_byte_is_a_file_too(self):
        result = qpair("demo", "--emulated", "--processes", "2", "--file", self.path("byte", b"x"), timeout=120)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("1 worker.", result.stdout)

    def test_size_repeats_a_short_file_and_cuts_a_long_one(self):
        for content, size in ((b"abc", "100001"), (os.urandom(5000), "4097")):
            with self.subTest(size):
                result = qpair("demo", "--emulated", "--file", self.path("data", content), "--size", size, timeout=120)
                self.assertEqual(result.returncode, 0, result.stderr)

    def test_survives_a_bad_network(self):
        result = qpair("demo", "--emulated", "--quiet", *"--loss 1% --duplicate 1% --reorder 1% --seed 7".split(),
                       "--file", self.path("data", os.urandom(1_000_000)), timeout=120)
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_the_server_stays_until_every_worker_has_its_last_acknowledgement(self):
        for seed in "123":
            result = qpair("demo", "--emulated", "--quiet", *"--loss 5% --size 4K --processes 9 --seed".split(), seed, timeout=120)
            self.assertEqual(result.returncode, 0, result.stderr)

    def test_captures_every_packet_in_one_file(self):
        capture = self.path("demo.pcapng")
        result = qpair("demo", "--emulated", "--capture", capture, "--file", self.path("data", os.urandom(10_000)), timeout=120)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(os.listdir(self.folder).count("demo.pcapng"), 1)
        self.assertGreater(os.path.getsize(capture), 20_000)

    def test_files_that_cannot_be_moved(self):
        self.assert_one_line_error(qpair("demo", "--file", self.path("missing")), 1, "No such file")
        self.assert_one_line_error(qpair("demo", "--file", self.path("empty", b"")), 1, "empty")
        self.assert_one_line_error(qpair("demo", "--file", self.folder), 1, "not a regular file")
        if os.geteuid() != 0:
            secret = self.path("secret", b"x")
            os.chmod(secret, 0)
            self.assert_one_line_error(qpair("demo", "--file", secret), 1, "Permission denied")

    def test_a_device_that_is_not_there(self):
        self.assert_one_line_error(qpair("demo", "--device", "mlx5_7"), 1, "mlx5_7")
        self.assert_one_line_error(qpair("demo", "--emulated", "--device", "mlx5_7"), 1, "mlx5_7")

    def test_more_than_the_memory_there_is_is_refused_at_once(self):
        result = qpair("demo", "--emulated", "--size", "4096G")
        self.assert_one_line_error(result, 1, "--size", "available")

    def test_a_killed_worker_is_an_error_and_leaves_nothing(self):
        process = self.start("--size", "256M")
        children = self.wait_for_children(process, 3)
        os.kill(children[1], signal.SIGKILL)
        output, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1)
        self.assertIn("qpair: worker 1 was killed by signal 9", errors)
        self.assert_gone(children)

    def test_a_stopped_worker_is_given_up_in_time(self):
        process = self.start("--size", "256M", "--timeout", "1")
        children = self.wait_for_children(process, 3)
        os.kill(children[2], signal.SIGSTOP)
        output, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1, output)
        self.assertIn("qpair: ", errors)
        self.assert_gone(children)

    def test_an_interrupt_ends_all_processes(self):
        process = self.start("--size", "256M")
        children = self.wait_for_children(process, 3)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, errors)
        self.assertIn("Interrupt", errors)
        self.assert_gone(children)

    def test_processes_do_not_outlive_a_killed_demo(self):
        process = self.start("--size", "256M")
        children = self.wait_for_children(process, 3)
        process.kill()
        process.wait()
        self.assert_gone(children)


class Exchange(CommandLine):
    """A worker of the demo that meets a stranger where its server should be."""

    def worker_meets(self, stranger, timeout="2"):
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)
        ours, theirs = socket.socketpair()
        self.addCleanup(ours.close)
        worker = subprocess.Popen(
            [QPAIR, "run", "--", QPAIR, "demo-worker", "--port", str(listener.getsockname()[1]), "--size", "1000",
             "--timeout", timeout, "--channel", str(theirs.fileno())],
            pass_fds=[theirs.fileno()], env=clean_environment())
        theirs.close()
        self.addCleanup(worker.wait)
        self.addCleanup(worker.kill)
        listener.settimeout(30)
        connection, _ = listener.accept()
        self.addCleanup(connection.close)
        connection.settimeout(30)
        stranger(connection)
        self.assertEqual(worker.wait(timeout=30), 1)
        message = json.loads(ours.makefile().readline())
        self.assertEqual(message["event"], "failed")
        return message["message"]

    def test_who_says_nothing(self):
        self.assertIn("server", self.worker_meets(lambda connection: None))

    def test_who_hangs_up(self):
        self.assertIn("server", self.worker_meets(lambda connection: connection.close()))

    def test_who_speaks_another_language(self):
        self.worker_meets(lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"))

    def test_who_has_another_version(self):
        def stranger(connection):
            header = bytearray(connection.recv(16, socket.MSG_WAITALL))
            header[4] ^= 0x7F  # the version follows the four bytes of the magic number
            header[5] ^= 0x7F
            connection.sendall(header)

        self.assertIn("version", self.worker_meets(stranger))

    def test_who_sends_too_much(self):
        def stranger(connection):
            header = bytearray(connection.recv(16, socket.MSG_WAITALL))
            header[12:16] = b"\xff\xff\xff\xff"
            connection.sendall(header)

        self.worker_meets(stranger)

    def test_who_sends_a_body_that_is_not_one(self):
        def stranger(connection):
            header = connection.recv(16, socket.MSG_WAITALL)
            length = max(struct.unpack("<I", header[12:16])[0], struct.unpack(">I", header[12:16])[0]) & 0xFFFF
            connection.sendall(header + b"\xff" * length)

        self.worker_meets(stranger)

    def test_who_stops_in_the_middle(self):
        def stranger(connection):
            connection.sendall(connection.recv(16, socket.MSG_WAITALL))

        self.worker_meets(stranger)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--qpair", required=True)
    parser.add_argument("--build")
    options, rest = parser.parse_known_args()
    QPAIR = os.path.abspath(options.qpair)
    unittest.main(argv=sys.argv[:1] + rest)
