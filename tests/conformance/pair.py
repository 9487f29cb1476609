#!/usr/bin/env python3
"""Runs a server and a client of an unmodified verbs program, each on an emulated NIC of its own.

    pair.py --qpair build/bin/qpair [--port-flag=-p | --port 7174] [--run-options "--mtu 1024"] [--expect REGEX]...
            [--server="-s"] [--client="-c -a 127.0.0.1"] -- PROGRAM ARGS...

The same command line is given to both, and then the arguments of each: the client gets 127.0.0.1 unless it is told
otherwise. The client starts when the server listens on the port, of TCP or of rdma_cm. Both must exit with 0 before the
time limit; with --expect the client's output must match each REGEX (Python syntax, multi-line). Whatever is printed is
shown when something is wrong. With --alone there is only the one process, as it is written.
"""
import argparse
import glob
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def listening(port: int) -> bool:
    suffix = ":%04X" % port
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(path) as table:
                if any(f[1].endswith(suffix) and f[3] == "0A" for f in (line.split() for line in list(table)[1:])):
                    return True
        except FileNotFoundError:
            pass
    return False


def listening_rdma_cm(port: int) -> bool:
    """As the emulated NICs of this user see it (softnic/driver/port_registry.hpp)."""
    for base in (os.environ.get("XDG_RUNTIME_DIR", "/nowhere"), "/dev/shm", os.environ.get("TMPDIR", "/tmp"), "/tmp"):
        for link in glob.glob(f"{base}/qpair-{os.geteuid()}/*/ports/*,{port},*"):
            try:
                if os.readlink(link).split(",")[2].startswith("l"):
                    return True
            except OSError:
                pass
    return False


def stop(process: subprocess.Popen) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.wait()


def spawn(arguments) -> subprocess.Popen:
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def start(options, run, deadline) -> list:
    """[(name, process)], the one whose output counts first."""
    if options.alone:
        return [("program", spawn(run))]
    port = options.port or free_port()
    base = run if options.port else [*run, options.port_flag, str(port)]
    server = spawn(base + shlex.split(options.server))
    while not listening(port) and not listening_rdma_cm(port) and server.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return [("client", spawn(base + shlex.split(options.client))), ("server", server)]


def attempt(options, command) -> tuple:
    """What went wrong, and what each process printed."""
    deadline = time.monotonic() + options.timeout
    processes = start(options, [options.qpair, "run", *shlex.split(options.run_options), "--", *command], deadline)
    problems, outputs = [], {}
    for name, process in processes:
        try:
            outputs[name], _ = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
            if process.returncode != 0:
                problems.append(f"{name} exited with {process.returncode}")
                deadline = time.monotonic() + 5  # the other one may wait for it
        except subprocess.TimeoutExpired:
            stop(process)
            outputs[name], _ = process.communicate()
            problems.append(f"{name} was still running after its time")
    for expression in options.expect:
        if not re.search(expression, outputs[processes[0][0]], re.MULTILINE):
            problems.append(f"the {processes[0][0]}'s output does not match {expression!r}")
    return problems, outputs


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--qpair", required=True)
    parser.add_argument("--run-options", default="")
    parser.add_argument("--port-flag", default="-p")
    parser.add_argument("--port", type=int, default=0, help="the one that the program has; it cannot be told another")
    parser.add_argument("--timeout", type=float, default=60)
    parser.add_argument("--huge-pages", type=int, default=0, help="skip (77) when the machine has fewer free ones")
    parser.add_argument("--server", default="", help="arguments of the server alone")
    parser.add_argument("--client", default="127.0.0.1", help="arguments of the client alone")
    parser.add_argument("--expect", action="append", default=[])
    parser.add_argument("--again", default="", help="what one of them prints when they lose a race of their own: 5 times")
    parser.add_argument("--alone", action="store_true", help="one process, and no port")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    with open("/proc/meminfo") as meminfo:
        free = next((int(line.split()[1]) for line in meminfo if line.startswith("HugePages_Free")), 0)
    if free < options.huge_pages:
        print(f"skipped: {options.huge_pages} free huge pages are needed and there are {free} (vm.nr_hugepages)")
        return 77
    for _ in range(5):
        problems, outputs = attempt(options, command)
        if not (problems and options.again and any(re.search(options.again, output) for output in outputs.values())):
            break
    if problems:
        for name in reversed(outputs):
            print(f"---- {name}\n{outputs[name]}")
        print("pair.py: " + "; ".join(problems))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
