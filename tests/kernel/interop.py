#!/usr/bin/env python3
"""The emulated NIC on this machine against the kernel's rxe in a guest, over a tap device.

    interop.py --run-in-guest PATH --qpair PATH --program PATH --results FILE

One guest for all: it runs `PROGRAM --serve`, and this script, started a second time by run-in-guest inside of the tap's
network namespace, runs PROGRAM and perftest against it.
"""
import argparse
import dataclasses
import os
import pathlib
import shlex
import socket
import struct
import subprocess
import sys
import tempfile
import time

import guest

PORT = 7471
RUN, STOP = 11, 12  # remote_side.cpp, Call
HOST, GUEST = "10.77.0.1", "10.77.0.2"
HOST6 = "fd77::1"
PATIENCE = 90  # seconds, for one program

# GID table entries: the emulated NIC's RoCE v2 one, and the guest's IPv4, routable and link-local IPv6 ones.
EMULATED_GID, GUEST_GID, GUEST_GID6, GUEST_LINK_LOCAL = 3, 1, 2, 0


@dataclasses.dataclass
class Session:
    """One run of the test program: for which group, how the emulated NIC is set up, and which tests."""
    group: str
    tests: str
    nic: list[str]
    name: str = ""
    peer_gid: int = GUEST_GID
    guest_before: str = ""
    guest_after: str = ""


def link_local(interface: str) -> str:
    with open("/proc/net/if_inet6") as table:
        for line in table:
            digits, *_, name = line.split()
            if name == interface and digits.startswith("fe80"):
                return ":".join(digits[i:i + 4] for i in range(0, 32, 4))
    raise SystemExit(f"{interface} has no link-local address")


def sessions(tap: str) -> list[Session]:
    ipv4 = ["--address", HOST]
    lossy = "*Transfers*"
    # What the guest sends is lost by its own network interface.
    shape = "tc qdisc add dev $KRDMA_NETDEV root netem loss 2% duplicate 1% reorder 2% delay 1ms"
    return [
        Session("operations", "*Messages*:*Operations*", ipv4),
        Session("refusals", "*ReceiverNotReady*:*Refusals*", ipv4),
        Session("loss", lossy, [*ipv4, *"--loss 3% --duplicate 2% --reorder 2% --seed 1".split()], "little lost: "),
        Session("loss", lossy, [*ipv4, *"--loss 15% --seed 2".split()], "much lost: "),
        Session("loss", lossy, [*ipv4, *"--loss 2% --delay 200us --seed 3".split()], "both ways: ", GUEST_GID, shape,
                "tc qdisc del dev $KRDMA_NETDEV root"),
        Session("ipv6", "*mtu1024*:*Operations*", ["--address", HOST6], "routable: ", GUEST_GID6),
        Session("ipv6", "*mtu4096*", ["--address", link_local(tap)], "link-local: ", GUEST_LINK_LOCAL),
    ]


class Guest:
    """Runs shell commands over there."""

    def start(self, command: str) -> socket.socket:
        connection = socket.create_connection((GUEST, PORT), timeout=PATIENCE)
        text = command.encode()
        connection.sendall(struct.pack("=II", RUN, len(text)) + text)
        return connection

    @staticmethod
    def finish(connection: socket.socket) -> tuple[int, str]:
        chunks = []
        try:
            while chunk := connection.recv(65536):
                chunks.append(chunk)
        except TimeoutError:
            chunks.append(f"\nno end within {PATIENCE} s\nexit status 124".encode())
        output, _, status = b"".join(chunks).decode(errors="replace").rstrip().rpartition("exit status ")
        return int(status or 125), output

    def run(self, command: str) -> tuple[int, str]:
        return self.finish(self.start(command))

    def stop(self) -> None:
        with socket.create_connection((GUEST, PORT), timeout=PATIENCE) as connection:
            connection.sendall(struct.pack("=II", STOP, 0))


def wait_for_guest(ready: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            if os.path.exists(ready):
                socket.create_connection((GUEST, PORT), timeout=5).close()
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise SystemExit("the guest's side of the test does not answer")


def run_session(options: argparse.Namespace, session: Session, folder: pathlib.Path) -> list[dict]:
    output = folder / "session.json"
    output.unlink(missing_ok=True)
    if session.guest_before:
        status, text = Guest().run(session.guest_before)
        if status != 0:
            return [guest.case(session.name + session.guest_before, "failed", text)]
    command = [options.qpair, "run", *session.nic, "--", options.program, "--peer", f"{GUEST}:{PORT}",
               "--peer-gid", str(session.peer_gid), f"--gtest_filter={session.tests}", f"--gtest_output=json:{output}"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, errors="replace", timeout=2 * PATIENCE)
        status, log = done.returncode, done.stdout
    except subprocess.TimeoutExpired as late:
        status, log = 124, (late.stdout or b"").decode(errors="replace")
    if session.guest_after:
        Guest().run(session.guest_after)
    return guest.googletest_cases(output, log, status, session.name)


# ---- perftest

def perftests() -> list[str]:
    tests = ["ib_send_bw -s 4096 -n 200", "ib_send_bw -b -s 4096 -n 200", "ib_send_lat -s 64 -n 100",
             "ib_write_bw -s 65536 -n 50", "ib_write_bw -q 4 -s 16384 -n 50", "ib_write_lat -s 64 -n 100",
             "ib_read_bw -s 65536 -n 50", "ib_read_lat -s 64 -n 100"]
    tests += [f"ib_atomic_bw -A {kind} -n 100" for kind in ("FETCH_AND_ADD", "CMP_AND_SWAP")]
    tests += [f"ib_{kind}_bw -m {mtu} -s 20000 -n 20" for kind, mtu in
              zip(("write", "read", "send", "write", "read"), (256, 512, 1024, 2048, 4096))]
    # rxe would answer 128 reads at once, more than a ConnectX asks for, and perftest takes the other side's word.
    return [f"{test} -o 16" if "_read_" in test or "_atomic_" in test else test for test in tests]


def listens(port: int) -> bool:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table) as lines:
            if any(f":{port:04X} " in line and " 0A " in line for line in lines):
                return True
    return False


def wait_until_listening(port: int, here: bool, server_ended) -> None:
    if not here:
        Guest().run(f"n=0; until grep -qE ':{port:04X} [0-9A-F]*:0000 0A' /proc/net/tcp /proc/net/tcp6; do "
                    f"n=$((n + 1)); [ $n -lt 300 ] || exit 1; sleep 0.1; done")
        return
    deadline = time.monotonic() + PATIENCE
    while not listens(port) and not server_ended() and time.monotonic() < deadline:
        time.sleep(0.02)


def run_perftest(options: argparse.Namespace, test: str, client_here: bool, port: int) -> dict:
    """Server and client of one of perftest's programs, one of them in the guest."""
    program, *arguments = test.split()
    here = [options.qpair, "run", "--address", HOST, "--", program, "-d", "mlx5_0", "-x", str(EMULATED_GID), "-F",
            "-p", str(port), *arguments]
    there = shlex.join(["timeout", str(PATIENCE), program]) + f" -d $KRDMA_DEVICE -x {GUEST_GID} -F -p {port} " + \
        shlex.join(arguments)
    started = time.monotonic()

    def start_here(more: list[str]) -> subprocess.Popen:
        return subprocess.Popen(here + more, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, errors="replace")

    if client_here:
        remote = Guest().start(there)
        wait_until_listening(port, False, lambda: False)
        local = start_here([GUEST])
    else:
        local = start_here([])
        wait_until_listening(port, True, lambda: local.poll() is not None)
        remote = Guest().start(f"{there} {HOST}")
    try:
        local_output, _ = local.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        local.kill()
        local_output, _ = local.communicate()
        local_output += f"\nno end within {PATIENCE} s"
    remote_status, remote_output = Guest.finish(remote)
    name = f"{'emulated_to_kernel' if client_here else 'kernel_to_emulated'}: {test}"
    fine = local.returncode == 0 and remote_status == 0
    detail = "" if fine else (f"---- emulated ({local.returncode})\n{local_output}\n---- kernel ({remote_status})\n"
                              f"{remote_output}")
    return guest.case(name, "passed" if fine else "failed", detail, time.monotonic() - started)


# ---- The two halves of this script

def in_namespace(options: argparse.Namespace) -> int:
    wait_for_guest(os.environ["KRDMA_READY"])
    groups: dict[str, list[dict]] = {}
    with tempfile.TemporaryDirectory(dir=options.results.parent) as folder:
        for session in sessions(os.environ["KRDMA_NETDEV"]):
            groups.setdefault(session.group, []).extend(run_session(options, session, pathlib.Path(folder)))
    port = 18515
    groups["perftest"] = []
    for test in perftests():
        for client_here in (True, False):
            groups["perftest"].append(run_perftest(options, test, client_here, port))
            port += 1
    guest.write_results(options.results, groups)
    Guest().stop()
    return 0


def outside(options: argparse.Namespace) -> int:
    options.results.parent.mkdir(parents=True, exist_ok=True)
    options.results.unlink(missing_ok=True)
    reason = guest.why_not(options.run_in_guest, "rxe", tap=True)
    if reason:
        print(f"skipped: {reason}")
        guest.write_results(options.results, {}, skipped=reason)
        return 0
    again = shlex.join([sys.executable, *sys.argv, "--in-namespace"])
    # 4200 bytes are what a path MTU of 4096 takes.
    return guest.boot(options.run_in_guest, ["--tap", "--mtu", "4200", "--host-command", again],
                      [options.program, "--serve", str(PORT)], seconds=420)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-in-guest", required=True)
    parser.add_argument("--qpair", required=True)
    parser.add_argument("--program", required=True)
    parser.add_argument("--results", type=pathlib.Path, required=True)
    parser.add_argument("--in-namespace", action="store_true")
    options = parser.parse_args()
    return in_namespace(options) if options.in_namespace else outside(options)


if __name__ == "__main__":
    sys.exit(main())
