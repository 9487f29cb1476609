#!/usr/bin/env python3
"""Runs rdma-core's own test suite on an emulated NIC and compares every result with a checked-in list.

    rdma_core_suite.py --suite DIR --expected FILE --qpair build/bin/qpair MODULE...   runs modules, test_qp for instance
    rdma_core_suite.py --suite DIR --expected FILE --complete                          the list names every test, and no other
    rdma_core_suite.py --suite DIR --qpair build/bin/qpair --record MODULE...          prints what it saw, as lines for the list

DIR is where the distribution keeps the suite (Debian: /usr/share/doc/rdma-core/tests, some files compressed).
The list has a line for each test: `test_qp.QPTest.test_create_rc_qp ok`, `… ok rxe` when it passes on the kernel's rxe
too, or `… skip: MESSAGE` with the beginning of the message that the suite skips it with; `… ok or skip: MESSAGE` where
that depends on the machine. There is no way to expect a failure. Exit status 77: the suite is not installed.
"""
import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

PYTHON = "/usr/bin/python3"  # the one that the distribution's pyverbs belongs to


# ---- Inside: under the emulated NIC -------------------------------------------------------------------------------


def load_suite(suite: str, arguments: list) -> unittest.TestSuite:
    """What the suite's own run_tests.py does before it runs anything."""
    from importlib.machinery import SourceFileLoader

    sys.path.insert(0, suite)
    sys.modules["scapy"] = None  # as if it were not installed: what needs it makes raw packets or whole queues by DEVX
    tests = SourceFileLoader("tests", os.path.join(suite, "__init__.py")).load_module()
    from args_parser import parser

    sys.argv = ["run_tests.py", *arguments]
    parser.parse_args()
    return unittest.defaultTestLoader.loadTestsFromModule(tests)


def each_test(suite: unittest.TestSuite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from each_test(test)
        else:
            yield test


def name_of(test) -> str:
    return test.id().removeprefix("tests.")


class Reporter(unittest.TestResult):
    """One line of JSON for each event, flushed, so that a crash says in which test it was."""

    def __init__(self, out):
        super().__init__()
        self.out = out

    def report(self, test, result: str, text: str = "") -> None:
        print(json.dumps([name_of(test), result, text]), file=self.out, flush=True)

    def startTest(self, test):
        super().startTest(test)
        self.report(test, "started")

    def addSuccess(self, test):
        self.report(test, "ok")

    def addSkip(self, test, reason):
        self.report(test, "skip", reason)

    def addFailure(self, test, error):
        self.report(test, "failed", self._exc_info_to_string(error, test))

    addError = addFailure

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.addFailure(test, error)


def run_inside(suite: str, modules: list, out_path: str) -> None:
    loaded = load_suite(suite, ["--dev", "mlx5_0", "--port", "1", "--gid", "3"])
    wanted = unittest.TestSuite(t for t in each_test(loaded) if name_of(t).split(".")[0] in modules)
    with open(out_path, "w", encoding="utf-8") as out:
        wanted.run(Reporter(out))


# ---- Outside ------------------------------------------------------------------------------------------------------


def unpack(suite: str, to: str) -> str:
    for entry in os.scandir(suite):
        if not entry.is_file():
            continue
        if entry.name.endswith(".gz"):
            with gzip.open(entry.path) as packed, open(os.path.join(to, entry.name[:-3]), "wb") as plain:
                shutil.copyfileobj(packed, plain)
        else:
            shutil.copy(entry.path, to)
    return to


def read_expected(path: str) -> dict:
    expected = {}
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            name, _, result = line.partition(" ")
            if name in expected or not (result in ("ok", "ok rxe") or result.startswith(("skip: ", "ok or skip: "))):
                sys.exit(f"{path}:{number}: {line!r}: a test named once, then ok, ok rxe, [ok or] skip: MESSAGE")
            expected[name] = result
    return expected


def one_line(text: str) -> str:
    return " ".join(text.split())


def run_modules(suite: str, qpair: str, modules: list, timeout: float) -> dict:
    """{name: (result, text)} of every test that was started or skipped."""
    with tempfile.NamedTemporaryFile() as out:
        inside = [PYTHON, os.path.abspath(__file__), "--suite", suite, "--inside", out.name, *modules]
        command = [qpair, "run", "--", *inside]
        try:
            process = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout,
                                     errors="replace", text=True)
            ended, printed = f"the process ended with {process.returncode}", process.stdout
        except subprocess.TimeoutExpired as late:
            ended, printed = f"it hung: killed after {timeout:.0f} s", (late.stdout or b"").decode(errors="replace")
        seen = {}
        with open(out.name, encoding="utf-8") as lines:
            for line in lines:
                name, result, text = json.loads(line)
                if seen.get(name, ("started",))[0] in ("started", "ok"):
                    seen[name] = (result, text)
        for name, (result, _) in seen.items():
            if result == "started":
                seen[name] = ("failed", f"{ended}\n{printed[-8000:]}")
        if not seen:
            print(printed)
        return seen


def compare(expected: dict, seen: dict, modules: list) -> list:
    problems = []
    for name in [n for n in expected if n.split(".")[0] in modules]:
        result, text = seen.get(name, ("not run", ""))
        wanted = expected[name]
        if result == "ok" and wanted.startswith("ok"):
            continue
        if result == "skip" and "skip: " in wanted and one_line(text).startswith(wanted.partition("skip: ")[2]):
            continue
        problems.append(f"{name}: expected {wanted}\n    it was {result} {text}")
    problems += [f"{name}: {seen[name][0]}, and the list does not have it" for name in seen if name not in expected]
    return problems


def check_complete(suite: str, expected: dict) -> list:
    listed = subprocess.run([PYTHON, os.path.abspath(__file__), "--suite", suite, "--list"], check=True,
                            stdout=subprocess.PIPE, text=True).stdout.split()
    problems = [f"{name} is not in the list" for name in listed if name not in expected]
    problems += [f"{name} is in the list, but not in the suite" for name in expected if name not in listed]
    return problems


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--suite", required=True)
    parser.add_argument("--expected")
    parser.add_argument("--qpair")
    parser.add_argument("--timeout", type=float, default=300)
    parser.add_argument("--complete", action="store_true")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--list", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("modules", nargs="*")
    options = parser.parse_args()
    if options.inside:
        run_inside(options.suite, options.modules, options.inside)
        return 0
    if options.list:
        print("\n".join(name_of(test) for test in each_test(load_suite(options.suite, []))))
        return 0
    if not os.path.isdir(options.suite):
        print(f"skipped: rdma-core's test suite is not in {options.suite} (Debian: python3-pyverbs)")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        suite = unpack(options.suite, folder)
        if options.record:
            for name, (result, text) in sorted(run_modules(suite, options.qpair, options.modules, options.timeout).items()):
                print(name, result if result == "ok" else f"{result}: {one_line(text) if result == 'skip' else text}")
            return 0
        expected = read_expected(options.expected)
        if options.complete:
            problems = check_complete(suite, expected)
        else:
            problems = compare(expected, run_modules(suite, options.qpair, options.modules, options.timeout),
                               options.modules)
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
