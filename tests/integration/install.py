#!/usr/bin/env python3
"""`cmake --install` makes a tree that CMake and pkg-config find, and whose qpair finds its NIC.

install.py --qpair PATH --build FOLDER
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
OPTIONS = None
PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES CXX)
find_package(qpair REQUIRED)
add_executable(put put.cpp)
target_link_libraries(put PRIVATE qpair::qpair)
"""


def run(*command, **keywords):
    result = subprocess.run(command, capture_output=True, text=True, timeout=240, **keywords)
    if result.returncode != 0:
        raise AssertionError(f"{' '.join(command)}: exit status {result.returncode}\n{result.stdout}{result.stderr}")
    return result.stdout


def is_sanitized():
    with open(os.path.join(OPTIONS.build, "CMakeCache.txt")) as file:
        return any(line.startswith("QPAIR_SANITIZE:") and not line.rstrip().endswith("=") for line in file)


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if is_sanitized():
            raise unittest.SkipTest("a sanitized library is not for others to link")
        cls.folder = tempfile.mkdtemp(prefix="qpair-install-")
        cls.prefix = os.path.join(cls.folder, "prefix")
        cls.program = os.path.join(cls.folder, "put.cpp")
        shutil.copy(os.path.join(ROOT, "examples", "put.cpp"), cls.program)
        run("cmake", "--install", OPTIONS.build, "--prefix", cls.prefix, "--strip")
        cls.qpair = os.path.join(cls.prefix, "bin", "qpair")

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def test_the_installed_command_finds_its_nic(self):
        self.assertIn("mlx5_0", run(self.qpair, "devices", "--emulated"))

    def test_cmake_finds_the_library(self):
        with open(os.path.join(self.folder, "CMakeLists.txt"), "w") as file:
            file.write(PROJECT)
        build = os.path.join(self.folder, "build")
        run("cmake", "-S", self.folder, "-B", build, f"-DCMAKE_PREFIX_PATH={self.prefix}")
        run("cmake", "--build", build)
        self.assertEqual(run(self.qpair, "run", "--", os.path.join(build, "put")), "written by the NIC\n")

    def test_pkg_config_finds_the_library(self):
        places = [os.path.join(path, "pkgconfig") for path, folders, _ in os.walk(self.prefix) if "pkgconfig" in folders]
        environment = dict(os.environ, PKG_CONFIG_PATH=":".join(places))
        flags = run("pkg-config", "--cflags", "--libs", "qpair", env=environment).split()
        binary = os.path.join(self.folder, "put-by-hand")
        run("c++", "-std=c++20", self.program, "-o", binary, *flags)
        self.assertEqual(run(self.qpair, "run", "--", binary), "written by the NIC\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--qpair", required=True)
    parser.add_argument("--build", required=True)
    OPTIONS, rest = parser.parse_known_args()
    unittest.main(argv=sys.argv[:1] + rest)
