"""What `./dev bench` runs side by side: qpair and its peers, each as its users would run it.

Every contender is a function that runs one thing once and returns numbers; it raises Failed when it could not. Times are
nanoseconds, bandwidths bytes a second, rates operations a second. What was run is noted in `commands`, by contender.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time

commands = {}  # contender: the last command line, the server's in front of "&"


class Failed(Exception):
    """One run did not give a number; the words say why."""


def clean_environment(changes):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("QPAIR_", "UCX_"))}
    environment.pop("LD_PRELOAD", None)
    return dict(environment, LC_ALL="C", **changes)


def shown(command, changes=None):
    words = [f"{name}={value}" for name, value in (changes or {}).items()] + [os.path.relpath(w) if w.startswith("/") else w for w in command]
    return " ".join(words)


def end(process):
    """Ends a process and what it started: each has a session of its own."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def start(command, changes=None, output=subprocess.DEVNULL):
    return subprocess.Popen(command, env=clean_environment(changes or {}), stdin=subprocess.DEVNULL, stdout=output,
                            stderr=subprocess.STDOUT if output == subprocess.DEVNULL else subprocess.PIPE, text=True,
                            start_new_session=True)


def run(command, changes=None, timeout=60):
    process = start(command, changes, subprocess.PIPE)
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise Failed(f"{shown(command)}: not done within {timeout} s")
    finally:
        end(process)
        process.stdout.close()
        process.stderr.close()
    if process.returncode != 0:
        last = (errors.strip() or output.strip()).splitlines()[-1:] or ["it does not say why"]
        raise Failed(f"{shown(command)}: status {process.returncode}: {last[0]}")
    return output


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_listening(port):
    """As the kernel sees it: connecting would be taken for the client."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table) as lines:
                if any(f":{port:04X} " in line and " 0A " in line for line in lines):
                    return True
        except OSError:
            pass
    return False


def run_pair(server, client, changes=None, timeout=30):
    """`server` and `client` have {port} in them. Returns what the client printed."""
    port = str(free_port())
    server = [word.format(port=port) for word in server]
    client = [word.format(port=port) for word in client]
    process = start(server, changes)
    try:
        deadline = time.monotonic() + 10
        while not is_listening(int(port)):
            if process.poll() is not None or time.monotonic() > deadline:
                raise Failed(f"{shown(server)}: it does not listen")
            time.sleep(0.005)
        return run(client, changes, timeout)
    finally:
        end(process)


def note(name, *parts):
    commands[name] = " & ".join(parts)


class Qpair:
    """`qpair bench`, between two processes of this host."""

    def __init__(self, binary, wires):
        self.binary = binary
        self.wires = wires  # what `qpair run --wire` takes; [] when it has no such option

    def wire_arguments(self, wire):
        return ["--wire", wire] if self.wires else []

    def bench(self, wire, operation, measure, sizes, duration, *more):
        command = [self.binary, "bench", "--json", *self.wire_arguments(wire), "-o", operation, "--measure", measure,
                   "-s", ",".join(map(str, sizes)), "--duration", f"{int(duration * 1000)}ms", *more]
        results = json.loads(run(command, timeout=60 + 20 * duration * len(sizes)))["results"]
        note(f"qpair {operation} {measure}", shown(command))
        return results

    def latency(self, wire, operation, sizes, duration, *more):
        return {r["size"]: r["ns"] for r in self.bench(wire, operation, "latency", sizes, duration, *more)}

    def ping_pong(self, wire, sizes, duration):
        return {r["size"]: r["ns"] for r in self.bench(wire, "put", "pingpong", sizes, duration)}

    def bandwidth(self, wire, operation, sizes, duration, *more):
        return {r["size"]: r["bytes_per_second"] for r in self.bench(wire, operation, "bandwidth", sizes, duration, *more)}

    def rate(self, wire, operation, size, duration, *more):
        return self.bench(wire, operation, "bandwidth", [size], duration, *more)[0]["operations_per_second"]

    def on_nic(self, wire, *command):
        return [self.binary, "run", "--quiet", *self.wire_arguments(wire), "--", *command]


def wires_of(binary):
    """What `qpair run --wire` takes of what is to be compared: the way within a host that a NIC chooses by itself, and UDP. [] before
    there was a choice, which is UDP."""

    def takes(wire):
        try:
            run([binary, "run", "--wire", wire, "--", "true"])
        except Failed:
            return False
        return True

    return [wire for wire in ("auto", "udp") if takes(wire)]


# --- UCX: ucx_perftest, whose medians are of half a ping-pong --------------------------------------------------------

UCX_TRANSPORTS = {
    "posix": {"UCX_TLS": "posix,self"},
    "tcp": {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"},
}


def ucx(transport, test, size, iterations, warm_up):
    changes = UCX_TRANSPORTS[transport]
    client = ["ucx_perftest", "localhost", "-p", "{port}", "-t", test, "-s", str(size), "-n", str(iterations), "-w", str(warm_up), "-v"]
    output = run_pair(["ucx_perftest", "-p", "{port}"], client, changes, timeout=10)
    note(f"UCX {transport} {test}", shown(["ucx_perftest"], changes), shown(client, changes))
    lines = [line for line in output.splitlines() if re.match(r"^\d+,[\d.,infa]+$", line.strip())]
    if not lines:
        raise Failed(f"ucx_perftest -t {test}: no result in {output!r}")
    # iterations, median latency, average latency (twice), bandwidth (twice, MiB/s), rate (twice)
    fields = [float(field) for field in lines[-1].split(",")]
    return {"median": fields[1] * 1e3, "mean": fields[3] * 1e3, "bytes_per_second": fields[5] * 2**20, "rate": fields[7]}


# --- perftest on the emulated NIC -----------------------------------------------------------------------------------

PERFTEST = {"put": "ib_write", "get": "ib_read", "send": "ib_send"}


def perftest(qpair, wire, operation, kind, iterations, last_size):
    """All sizes from 2 to 8 MiB: {size: …}. kind: lat or bw."""
    program = f"{PERFTEST[operation]}_{kind}"
    arguments = ["-F", "-n", str(iterations), "-p", "{port}"] + (["-a"] if last_size is None else ["-s", str(last_size)])
    server, client = qpair.on_nic(wire, program, *arguments), qpair.on_nic(wire, program, *arguments, "localhost")
    output = run_pair(server, client, timeout=45)
    note(f"perftest {program}", shown(server), shown(client))
    rows = {}
    for line in output.splitlines():
        fields = line.split()
        if not re.match(r"^\d+$", fields[0] if fields else "") or len(fields) < 5:
            continue
        if kind == "lat":
            rows[int(fields[0])] = {"median": float(fields[4]) * 1e3, "p99": float(fields[7]) * 1e3, "p999": float(fields[8]) * 1e3}
        else:
            rows[int(fields[0])] = float(fields[3]) * 2**20
    if not rows:
        raise Failed(f"{program}: no result in {output[-200:]!r}")
    return rows


# --- TCP, and copies ------------------------------------------------------------------------------------------------


def iperf3(seconds):
    client = ["iperf3", "-c", "127.0.0.1", "-p", "{port}", "-t", str(seconds), "-J"]
    output = run_pair(["iperf3", "-s", "-1", "-p", "{port}"], client, timeout=20 + seconds)
    note("iperf3", "iperf3 -s -1 -p {port}", shown(client))
    return json.loads(output)["end"]["sum_received"]["bits_per_second"] / 8


def google_benchmark(command, output_folder, timeout=300):
    """Runs a program of bench/; its JSON."""
    path = os.path.join(output_folder, "google-benchmark.json")
    run([*command, f"--benchmark_out={path}", "--benchmark_out_format=json"], timeout=timeout)
    with open(path) as file:
        result = json.load(file)
    os.unlink(path)
    return result


def copies(folder, output_folder, kind, sizes, seconds):
    """kind: copy_in_cache, copy_not_in_cache, process_vm_write. {size: bytes a second}."""
    pattern = f"^{kind}/({'|'.join(map(str, sizes))})/"
    command = [os.path.join(folder, "bench-copies"), f"--benchmark_filter={pattern}", f"--benchmark_min_time={seconds}"]
    runs = google_benchmark(command, output_folder)["benchmarks"]
    note(kind, shown(command))
    failed = [run_ for run_ in runs if run_.get("error_occurred")]
    if failed or not runs:
        raise Failed(failed[0]["error_message"] if failed else f"no {kind}")
    return {int(run_["name"].split("/")[1]): run_["bytes_per_second"] for run_ in runs}


# --- what there is --------------------------------------------------------------------------------------------------

PEERS = {  # program: Debian package
    "ucx_perftest": "ucx-utils",
    "ib_write_bw": "perftest",
    "iperf3": "iperf3",
}


def missing_peers():
    return {program: package for program, package in PEERS.items() if shutil.which(program) is None}


def versions():
    packages = ["libibverbs1", "ibverbs-providers", "ucx-utils", "perftest", "iperf3", "libbenchmark-dev"]
    found = {}
    for package in packages:
        query = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package], capture_output=True, text=True)
        if query.returncode == 0 and query.stdout:
            found[package] = query.stdout
    return found
