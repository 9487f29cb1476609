#!/usr/bin/env python3
"""Every test with the name of a wire runs over that wire, and every program's test knows whether a violation ends it, as CTest has it.

environments.py --qpair PATH --build FOLDER
"""

import argparse
import json
import os
import subprocess


def settings_of(test):
    properties = {one["name"]: one["value"] for one in test["properties"]}
    return dict(one.split("=", 1) for one in properties.get("ENVIRONMENT", []))


parser = argparse.ArgumentParser()
parser.add_argument("--qpair")
parser.add_argument("--build", required=True)
folder = parser.parse_args().build

# A sanitizer's runtime is for the programs under test.
clean = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
shown = subprocess.run(["ctest", "--show-only=json-v1"], cwd=folder, env=clean, check=True, capture_output=True).stdout

wires = set()
for test in json.loads(shown)["tests"]:
    suite, program, *rest = test["name"].split(".")
    settings = settings_of(test)
    told = f"{test['name']}: {settings}"
    wire = ({"ring", "udp"}.intersection(rest) or {"auto"}).pop()
    if wire != "auto" or (suite == "integration" and rest):
        assert settings.get("QPAIR_NIC_WIRE") == wire, told
        wires.add((suite, wire))
    if suite == "integration" and rest:
        assert settings.get("QPAIR_NIC_STRICT") == ("0" if program in ("protocol", "errors") else "1"), told
assert {("integration", wire) for wire in ("auto", "ring", "udp")} <= wires, wires
