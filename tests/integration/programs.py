#!/usr/bin/env python3
"""Unmodified programs with the emulated NIC preloaded: those that look for RDMA devices find it, the others notice
nothing, and nothing is left behind.

programs.py --build FOLDER [--qpair PATH] [unittest arguments]
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

LIBRARY = None
EXPECTED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "expected")


def environment(runtime_folder=None, **changes):
    """The environment of a program on the NIC. A sanitizer's runtime that is preloaded already stays in front."""
    made = dict(os.environ, **changes)
    made["LD_PRELOAD"] = ":".join(filter(None, [os.environ.get("LD_PRELOAD"), LIBRARY]))
    if runtime_folder:
        made["XDG_RUNTIME_DIR"] = runtime_folder
    return made


def run(*command, env=None, **keywords):
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=env or environment(), **keywords)


class Devices(unittest.TestCase):
    def test_ibv_devices_lists_the_device(self):
        result = run("ibv_devices")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"\n +mlx5_0 +\t[0-9a-f]{16}\n")

    def devinfo(self, **changes):
        result = run("ibv_devinfo", "-v", env=environment(**changes))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr, "")
        return [" ".join(line.split()) for line in result.stdout.splitlines()]

    # Through either kernel interface, and whatever address this process's NIC has.
    def test_ibv_devinfo_shows_a_connectx_7(self):
        with open(os.path.join(EXPECTED, "ibv_devinfo.txt"), encoding="utf8") as file:
            facts = [line.strip() for line in file if line.strip() and not line.startswith("#")]
        for interface in "ioctl", "write":
            shown = self.devinfo(**({"QPAIR_NIC_ABI": "write"} if interface == "write" else {}))
            for fact in facts:
                with self.subTest(interface=interface, fact=fact):
                    pattern = re.compile(fact)
                    self.assertTrue(any(pattern.fullmatch(line) for line in shown), "\n".join(shown))

    def test_sysfs_and_the_verbs_query_agree(self):
        script = """
            cat /sys/class/infiniband/mlx5_0/node_guid
            for i in 0 1 2 3; do cat /sys/class/infiniband/mlx5_0/ports/1/gids/$i; done"""
        address = "127.71.254.17"
        values = run("sh", "-c", script, env=environment(QPAIR_NIC_ADDRESS=address)).stdout.split()
        self.assertEqual(len(values), 5)
        shown = self.devinfo(QPAIR_NIC_ADDRESS=address)
        self.assertIn(f"node_guid: {values[0]}", shown)
        self.assertIn(f"GID[ 0]: {values[1]}, RoCE v1", shown)
        self.assertIn(f"GID[ 2]: {values[3]}, RoCE v1", shown)
        self.assertIn(f"GID[ 3]: ::ffff:{address}, RoCE v2", shown)

    def test_a_bad_configuration_is_one_sentence_and_no_device(self):
        result = run("ibv_devices", env=environment(QPAIR_NIC_MTU="9000"))
        self.assertNotIn("mlx5_0", result.stdout)
        sentences = [line for line in result.stderr.splitlines() if "QPAIR_NIC_MTU" in line]
        self.assertEqual(len(sentences), 1, result.stderr)
        self.assertIn("9000", sentences[0])

    def test_a_program_that_wants_no_device_is_not_told_of_a_bad_configuration(self):
        result = run("true", env=environment(QPAIR_NIC_MTU="9000"))
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""))


class Transparency(unittest.TestCase):
    """The same command with and without the NIC: same output, same status."""

    def same(self, *command, **keywords):
        bare = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        plain = subprocess.run(command, capture_output=True, text=True, timeout=60, env=bare, **keywords)
        preloaded = run(*command, **keywords)
        self.assertEqual((preloaded.returncode, preloaded.stdout, preloaded.stderr),
                         (plain.returncode, plain.stdout, plain.stderr))

    def test_shell(self):
        self.same("bash", "-c", "exec 3</etc/passwd; read -u 3 line; echo $line; (exit 3); echo $?; ls -d /dev/shm; "
                                "cd /sys/class && pwd; x=$(echo nested | cat); echo $x; kill -TERM $$")

    def test_python(self):
        self.same("python3", "-c", "import subprocess, os\n"
                                   "print(subprocess.run(['echo', 'x'], capture_output=True, close_fds=True))\n"
                                   "print(sorted(os.listdir('/sys/class'))[:3], os.path.realpath('/dev/stdin/..'))\n"
                                   "pid = os.fork()\n"
                                   "os._exit(3) if pid == 0 else print(os.waitpid(pid, 0)[1])\n"
                                   "open('/nonexistent')")

    def test_ls(self):
        self.same("ls", "-l", "/dev/null", "/dev/zero", "/sys/class/net/lo", "/nonexistent")

    def test_find(self):
        self.same("find", "/sys/class/net/lo/", "-maxdepth", "1", "-type", "f", "-name", "m*")

    @unittest.skipUnless(shutil.which("git"), "git is not installed")
    def test_git(self):
        with tempfile.TemporaryDirectory() as folder:
            self.same("git", "-C", folder, "init", "-q")
            self.same("git", "-C", folder, "status")

    def test_sleep_and_signals(self):
        sleeping = subprocess.Popen(["sleep", "60"], env=environment())
        sleeping.send_signal(signal.SIGTERM)
        self.assertEqual(sleeping.wait(timeout=10), -signal.SIGTERM)


class FilesOfTheDevice(unittest.TestCase):
    """Programs that look at the device's files by themselves."""

    def test_shell_patterns(self):
        result = run("bash", "-c", "echo /sys/class/infiniband/*/ports/*/gids/[23]; test -c /dev/infiniband/uverbs0; "
                                   "echo $?; cd /sys/class/infiniband/mlx5_0/ports/1; pwd -P; cat link_layer")
        self.assertEqual(result.stdout, "/sys/class/infiniband/mlx5_0/ports/1/gids/2 "
                                        "/sys/class/infiniband/mlx5_0/ports/1/gids/3\n0\n"
                                        "/sys/devices/pci7171:00/7171:00:00.0/infiniband/mlx5_0/ports/1\nEthernet\n",
                         result.stderr)

    def test_ls_shows_links_and_the_device_node(self):
        result = run("ls", "-l", "/dev/infiniband", "/sys/class/infiniband")
        self.assertRegex(result.stdout, r"\ncrw-rw-rw- .* 231, 192 .* uverbs0\n")
        self.assertIn("mlx5_0 -> ../../devices/pci7171:00/7171:00:00.0/infiniband/mlx5_0\n", result.stdout)
        self.assertEqual(result.stderr, "")

    def test_python_walks_resolves_and_globs(self):
        result = run("python3", "-c", "import os, glob, stat\n"
                                      "d = '/sys/class/infiniband/mlx5_0'\n"
                                      "print(os.path.realpath(d + '/device'))\n"
                                      "print(glob.glob('/sys/class/infiniband/*/node_type'))\n"
                                      "print(os.listdir(d + '/device/net'), os.path.exists(d + '/device/net/'))\n"
                                      "print(len(list(os.walk(d))) > 5)\n"
                                      "print(stat.S_ISCHR(os.stat('/dev/infiniband/uverbs0').st_mode))\n"
                                      "print([e.name for e in os.scandir('/sys/class/infiniband_verbs')\n"
                                      "       if e.is_dir()])")
        self.assertEqual(result.stdout.splitlines(),
                         ["/sys/devices/pci7171:00/7171:00:00.0", "['/sys/class/infiniband/mlx5_0/node_type']",
                          "['lo'] True", "True", "True", "['uverbs0']"], result.stderr)


class NothingIsLeft(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="qpair-programs-")
        self.addCleanup(shutil.rmtree, self.folder)

    def left(self):
        return [os.path.join(path, name) for path, folders, files in os.walk(self.folder) for name in folders + files]

    def test_after_a_program_that_ends(self):
        for command in (["ibv_devinfo"], ["bash", "-c", "for d in /sys/class/infiniband/*; do echo $d; done"],
                        ["python3", "-c", "import os; os.stat('/dev/infiniband/uverbs0'); os._exit(0)"],
                        ["sh", "-c", "cat /sys/class/infiniband/mlx5_0/node_type & cat /sys/class/infiniband/x; wait"]):
            run(*command, env=environment(self.folder))
            self.assertEqual(self.left(), [], command)

    def test_after_a_program_that_is_killed_and_one_more(self):
        program = "import os, time; os.stat('/dev/infiniband/uverbs0'); print('ready', flush=True); time.sleep(60)"
        victim = subprocess.Popen(["python3", "-c", program], env=environment(self.folder), stdout=subprocess.PIPE)
        self.assertEqual(victim.stdout.readline(), b"ready\n")
        self.assertNotEqual(self.left(), [])
        victim.kill()
        victim.wait()
        victim.stdout.close()
        run("ibv_devices", env=environment(self.folder))
        self.assertEqual(self.left(), [])

    def test_a_program_that_does_not_look_for_devices_makes_nothing(self):
        result = run("bash", "-c", f"ls /dev >/dev/null; ls {self.folder}", env=environment(self.folder))
        self.assertEqual((result.stdout, result.stderr), ("", ""))


def main():
    global LIBRARY
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--qpair")
    options, rest = parser.parse_known_args()
    LIBRARY = os.path.join(os.path.abspath(options.build), "lib", "libqpair-softnic.so")
    if not os.path.exists(LIBRARY):
        sys.exit(f"{LIBRARY} is not there")
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
