#!/usr/bin/env python3
"""Runs a server and a client of an unmodified verbs program, each on an emulated NIC of its own.

    pair.py --qpair build/bin/qpair [--port-flag=-p] [--run-options "--mtu 1024"] [--expect REGEX]... -- PROGRAM ARGS...

The same command line is given to both; the client gets 127.0.0.1 as its last argument. The client starts when the
server listens on the port. Both must exit with 0 before the time limit; with --expect the client's output must match
each REGEX (Python syntax, multi-line). Whatever is printed is shown when something is wrong.
"""
import argparse
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


def stop(process: subprocess.Popen) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.wait()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--qpair", required=True)
    parser.add_argument("--run-options", default="")
    parser.add_argument("--port-flag", default="-p")
    parser.add_argument("--timeout", type=float, default=60)
    parser.add_argument("--huge-pages", type=int, default=0, help="skip (77) when the machine has fewer free ones")
    parser.add_argument("--expect", action="append", default=[])
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    with open("/proc/meminfo") as meminfo:
        free = next((int(line.split()[1]) for line in meminfo if line.startswith("HugePages_Free")), 0)
    if free < options.huge_pages:
        print(f"skipped: {options.huge_pages} free huge pages are needed and there are {free} (vm.nr_hugepages)")
        return 77
    port = free_port()
    base = [options.qpair, "run", *shlex.split(options.run_options), "--", *command, options.port_flag, str(port)]
    deadline = time.monotonic() + options.timeout

    def spawn(arguments):
        return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    server = spawn(base)
    while not listening(port) and server.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    client = spawn(base + ["127.0.0.1"])
    problems, outputs = [], {}
    for name, process in (("client", client), ("server", server)):
        try:
            outputs[name], _ = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
            if process.returncode != 0:
                problems.append(f"{name} exited with {process.returncode}")
        except subprocess.TimeoutExpired:
            stop(process)
            outputs[name], _ = process.communicate()
            problems.append(f"{name} was still running after {options.timeout:.0f} s")
    stop(client)
    stop(server)
    for expression in options.expect:
        if not re.search(expression, outputs["client"], re.MULTILINE):
            problems.append(f"the client's output does not match {expression!r}")
    if problems:
        for name in ("server", "client"):
            print(f"---- {name}\n{outputs[name]}")
        print("pair.py: " + "; ".join(problems))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
