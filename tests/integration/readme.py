#!/usr/bin/env python3
"""The README's program and the examples do on the emulated NIC what they say.

readme.py --qpair PATH --build FOLDER
"""

import argparse
import os
import re
import subprocess
import sys
import unittest

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
OPTIONS = None


def text_of(name):
    with open(os.path.join(ROOT, name), encoding="utf-8") as file:
        return file.read()


class Readme(unittest.TestCase):
    def run_program(self, name):
        command = [OPTIONS.qpair, "run", "--", os.path.join(OPTIONS.build, "bin", name)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return result.stdout

    def test_its_program_is_the_example_and_runs(self):
        block = re.search(r"```cpp\n(.*?)```", text_of("README.md"), re.DOTALL).group(1)
        self.assertEqual(block, text_of("examples/put.cpp"))
        self.assertLessEqual(len(block.splitlines()), 32)
        self.assertEqual(self.run_program("readme-example"), "written by the NIC\n")
        self.assertEqual(self.run_program("example-put"), "written by the NIC\n")

    def test_a_batch_is_invisible_until_its_doorbell(self):
        self.assertEqual(
            self.run_program("example-batch"),
            "written 64, visible to the NIC 0\nwritten 64, completed 64\nall bytes are there\n",
        )

    def test_two_processes_meet(self):
        self.assertEqual(self.run_program("example-two_processes"), "notice 42: hello from the other process\n")

    def test_links_lead_somewhere(self):
        for document in ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/design.md", "docs/emulated-nic.md",
                         "docs/observing.md"]:
            folder = os.path.dirname(os.path.join(ROOT, document))
            for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text_of(document)):
                if not target.startswith("http"):
                    self.assertTrue(os.path.exists(os.path.join(folder, target)), f"{document}: {target}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--qpair", required=True)
    parser.add_argument("--build", required=True)
    OPTIONS, rest = parser.parse_known_args()
    unittest.main(argv=sys.argv[:1] + rest)
