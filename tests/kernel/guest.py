#!/usr/bin/env python3
"""What the kernel's tests have in common: whether a guest can be booted here, booting it, and the results.

A guest is booted once for many tests. Those write their results to a file, and each CTest entry reports one group:

    guest.py report --results FILE GROUP

It exits with 0 when every case of the group passed, with 77 (skipped) when there was no guest or every case was skipped,
and with 1 otherwise, no case at all included.
"""
import argparse
import json
import os
import pathlib
import platform
import re
import subprocess
import sys

SKIPPED = 77
NOT_TO_BE_HAD = re.compile(r"cannot (install|download)|no package .* in the configured|No packages found|locked by another run")


def why_not(run_in_guest: str, device: str, tap: bool) -> str:
    """Why no guest can be booted here, or nothing. Installs and downloads what it takes."""
    if not run_in_guest or not os.access(run_in_guest, os.X_OK):
        return "run-in-guest was not found: the guest that it boots is what these tests run on (QPAIR_RUN_IN_GUEST)"
    if platform.machine() != "x86_64":
        return f"the guest is x86_64, this machine {platform.machine()}"
    if tap and os.geteuid() != 0:
        return "a tap device takes root"
    if tap and not os.path.exists("/dev/net/tun"):
        return "a tap device takes /dev/net/tun"
    done = subprocess.run([run_in_guest, "--device", device, "--prepare"], stdin=subprocess.DEVNULL, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode == 0:
        return ""
    lines = [line for line in done.stdout.splitlines() if NOT_TO_BE_HAD.search(line)]
    if lines:
        return lines[-1]
    raise SystemExit(f"run-in-guest --prepare failed ({done.returncode}):\n{done.stdout}")


def boot(run_in_guest: str, options: list[str], command: list[str], seconds: int) -> int:
    """The command's exit status, or that of what went wrong; run-in-guest says what."""
    return subprocess.run([run_in_guest, "--accel", "tcg", "--timeout", str(seconds), *options, "--", *command],
                          stdin=subprocess.DEVNULL).returncode


# ---- Results

def case(name: str, outcome: str, detail: str = "", seconds: float = 0.0) -> dict:
    """`outcome` is passed, failed or skipped."""
    return {"name": name, "outcome": outcome, "detail": detail, "seconds": seconds}


def googletest_cases(report: pathlib.Path, log: str, status: int, prefix: str = "") -> list[dict]:
    """The cases of a GoogleTest program from its JSON report; its end, when it did not come to write one."""
    if not report.exists():
        return [case(f"{prefix}the program", "failed", f"it ended with status {status} and no report:\n{log[-4000:]}")]
    reasons = dict(re.findall(r"^\[ RUN +\] (\S+)\n.*?: Skipped\n(.*?)\n+\[ ", log, re.MULTILINE))
    cases = []
    for suite in json.loads(report.read_text())["testsuites"]:
        for test in suite["testsuite"]:
            name = f"{suite['name']}.{test['name']}"
            failures = "\n".join(failure["failure"] for failure in test.get("failures", []))
            outcome = "failed" if failures else {"COMPLETED": "passed"}.get(test["result"], "skipped")
            cases.append(case(prefix + name, outcome, failures or reasons.get(name, ""), float(test["time"].rstrip("s"))))
    if status != 0 and all(entry["outcome"] != "failed" for entry in cases):
        cases.append(case(f"{prefix}the program", "failed", f"it ended with status {status}:\n{log[-4000:]}"))
    return cases


def write_results(path: pathlib.Path, groups: dict[str, list[dict]], skipped: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"skipped": skipped, "groups": groups}, indent=1))


def report(path: pathlib.Path, group: str) -> int:
    results = json.loads(path.read_text())
    if results["skipped"]:
        print(f"skipped: {results['skipped']}")
        return SKIPPED
    cases = results["groups"].get(group, [])
    for entry in cases:
        one_line = entry["outcome"] != "failed"
        detail = (" ".join(entry["detail"].split()) if one_line else "\n" + entry["detail"]) if entry["detail"] else ""
        print(f"{entry['outcome']:7} {entry['seconds']:6.2f} s  {entry['name']}{': ' + detail if detail else ''}")
    outcomes = [entry["outcome"] for entry in cases]
    print(", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in ("passed", "failed", "skipped")))
    if not cases or "failed" in outcomes:
        return 1
    return 0 if "passed" in outcomes else SKIPPED


def main() -> int:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    reporting = commands.add_parser("report")
    reporting.add_argument("--results", type=pathlib.Path, required=True)
    reporting.add_argument("group")
    options = parser.parse_args()
    return report(options.results, options.group)


if __name__ == "__main__":
    sys.exit(main())
