#!/usr/bin/env python3
"""Counts the instructions that posting and polling take, with callgrind: the same on every machine and in every run.

    bench/instructions.py [BUILD FOLDER]

bench-post runs under valgrind on the emulated NIC; only its measured_* functions, and what they call, are counted.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

# What is measured; with what it is compared; operations to a doorbell or poll.
PAIRS = [
    ("enqueue_put", "ibv_wr", 1),
    ("enqueue_put", "ibv_wr", 16),
    ("enqueue_put", "ibv_wr", 64),
    ("enqueue_puts", "ibv_wr", 16),
    ("enqueue_puts", "ibv_wr", 64),
    ("enqueue_put", "ibv_post_send", 64),
    ("enqueue_puts", "ibv_post_send", 64),
    ("enqueue_put", "ibv_post_send_list", 64),
    ("enqueue_puts", "ibv_post_send_list", 64),
    ("put", "ibv_post_send", 1),
    ("unsignaled", "ibv_wr_unsignaled", 64),
    ("inline", "ibv_wr_inline", 64),
    ("poll_send_completion", "ibv_poll_cq", 1),
    ("poll_completions", "ibv_poll_cq", 1),
    ("poll_completions", "ibv_poll_cq", 16),
    ("poll_completions", "ibv_poll_cq", 64),
]


def instructions(build, name, batch, known={}):
    """Of one operation."""
    if (name, batch) in known:
        return known[name, batch]
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(
            [build / "bin/qpair", "run", "--",
             "valgrind", "--tool=callgrind", "--fair-sched=yes", "--collect-atstart=no",
             f"--toggle-collect=*measured_{name}(*", f"--callgrind-out-file={folder}/out",
             build / "bin/bench-post", "--operations", name, str(batch)],
            capture_output=True, text=True)
    operations = re.search(r"^(\d+) operations", run.stdout, re.M)
    collected = re.search(r"Collected : (\d+)", run.stderr)
    if run.returncode != 0 or not operations or not collected:
        sys.exit(run.stdout + run.stderr)
    known[name, batch] = int(collected[1]) / int(operations[1])
    return known[name, batch]


def main():
    build = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build").resolve()
    for mine, theirs, batch in PAIRS:
        a = instructions(build, mine, batch)
        b = instructions(build, theirs, batch)
        print(f"instructions {mine}/{batch} / {theirs}/{batch}: {a / b:.3f} ({a:.1f} / {b:.1f})", flush=True)


main()
