#!/usr/bin/env python3
"""The capture of a demo is a pcapng file in which Wireshark sees RoCE v2 and nothing malformed."""
import argparse
import collections
import os
import subprocess
import sys
import tempfile


def tshark(capture, *arguments):
    # Payload that happens to start like an Ethernet type is not taken for a frame.
    command = ["tshark", "--disable-heuristic", "eth_over_ib", "--disable-protocol", "rpcordma", "-r", capture, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if result.returncode != 0:
        sys.exit(f"tshark failed: {result.stderr}")
    return result.stdout.splitlines()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--qpair", required=True)
    parser.add_argument("--build", required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        capture = os.path.join(folder, "demo.pcapng")
        demo = subprocess.run([options.qpair, "demo", "--emulated", "--size", "256KiB", "--capture", capture],
                              capture_output=True, text=True, timeout=120)
        if demo.returncode != 0:
            sys.exit(f"the demo failed: {demo.stdout}{demo.stderr}")
        protocols = collections.Counter(tshark(capture, "-T", "fields", "-e", "frame.protocols"))
        others = [p for p in protocols if "infiniband" not in p]
        if not protocols or others:
            sys.exit(f"frames that are not RoCE v2: {others or 'the capture is empty'}")
        malformed = tshark(capture, "-Y", "_ws.malformed || _ws.short")
        if malformed:
            sys.exit("malformed frames:\n" + "\n".join(malformed[:10]))
        operations = set(tshark(capture, "-T", "fields", "-e", "infiniband.bth.opcode"))
        # RDMA WRITE, RDMA READ request and response, WRITE with immediate and ACK (IBTA vol. 1 table 38)
        for name, opcodes in {"write": {6, 7, 8, 10}, "read request": {12}, "read response": {13, 14, 15, 16},
                              "write with immediate": {9, 11}, "acknowledge": {17}}.items():
            if not opcodes & {int(o) for o in operations if o}:
                sys.exit(f"no {name} in the capture, only opcodes {sorted(operations)}")
        print(f"{sum(protocols.values())} frames, all RoCE v2, none malformed")


if __name__ == "__main__":
    main()
