#!/usr/bin/env python3
"""Runs an MPI program over shared memory, then over a transport of the emulated NIC, and compares what it prints.

    mpi.py --qpair build/bin/qpair --mpirun mpirun --transport rc_mlx5 PROGRAM

Open MPI with UCX for its messages and windows; each of three processes has an emulated NIC of its own.
"""
import argparse
import os
import subprocess
import sys


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--qpair", required=True)
    parser.add_argument("--mpirun", required=True)
    parser.add_argument("--transport", required=True, help="as UCX_TLS names it")
    parser.add_argument("program")
    options = parser.parse_args()
    # Root may run it: a container has no other user.
    environment = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    mpirun = [options.mpirun, "--oversubscribe", "-n", "3", "--mca", "btl", "self", "--mca", "pml", "ucx",
              "--mca", "osc", "ucx", "--mca", "opal_common_ucx_tls", "any", "--mca", "opal_common_ucx_devices", "any"]

    def run(*command: str) -> str:
        process = subprocess.run([*mpirun, *command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 text=True, timeout=200, check=False)
        if process.returncode != 0 or not process.stdout:
            sys.exit(f"{' '.join(command)} ended with {process.returncode}\n{process.stdout}{process.stderr}")
        return process.stdout

    expected = run("-x", "UCX_TLS=posix,cma,self", options.program)
    printed = run("-x", f"UCX_TLS={options.transport},self", "-x", "UCX_NET_DEVICES=mlx5_0:1", options.qpair, "run", "--",
                  options.program)
    if printed != expected:
        print(f"over {options.transport}:\n{printed}\nover shared memory:\n{expected}")
        return 1
    print(expected)
    return 0


if __name__ == "__main__":
    sys.exit(main())
