#!/usr/bin/env python3
"""GoogleTest programs on a device of the kernel's, one after another in one guest; one group of results for each.

    suite.py --run-in-guest PATH --device rxe|siw --results FILE PROGRAM...
"""
import argparse
import pathlib
import shlex
import sys
import tempfile

import guest

PROGRAM_SECONDS = 240


def script(programs: list[pathlib.Path], folder: str) -> str:
    lines = []
    for program in programs:
        output = shlex.quote(f"{folder}/{program.name}")
        lines.append(f"timeout {PROGRAM_SECONDS} {shlex.quote(str(program))} --gtest_output=json:{output}.json "
                     f">{output}.log 2>&1; echo $? >{output}.status")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-in-guest", required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--results", type=pathlib.Path, required=True)
    parser.add_argument("programs", type=pathlib.Path, nargs="+")
    options = parser.parse_args()
    options.results.unlink(missing_ok=True)
    reason = guest.why_not(options.run_in_guest, options.device, tap=False)
    if reason:
        print(f"skipped: {reason}")
        guest.write_results(options.results, {}, skipped=reason)
        return 0
    options.results.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.results.parent) as folder:
        status = guest.boot(options.run_in_guest, ["--device", options.device, "--rw", folder],
                            ["sh", "-c", script(options.programs, folder)], seconds=60 + PROGRAM_SECONDS * 2)
        if status != 0:
            print(f"the guest ended with status {status}")
            return 1
        groups = {}
        for program in options.programs:
            output = pathlib.Path(folder) / program.name
            groups[program.name] = guest.googletest_cases(
                output.with_suffix(".json"), output.with_suffix(".log").read_text(errors="replace"),
                int(output.with_suffix(".status").read_text()))
    guest.write_results(options.results, groups)
    return 0


if __name__ == "__main__":
    sys.exit(main())
