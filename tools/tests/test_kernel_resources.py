"""Tests of tools/kernel_resources.py and tools/keep_ptxas_report: a clean report passes, each broken assumption is named."""
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOLS = Path(__file__).resolve().parent.parent
PLAIN = "_Z5plainPf"
HEADS16 = ("_ZN6fathom3ops13sparse_decode12_GLOBAL__N_16decodeINS1_8GeometryILNS0_9RowFormatE0ELi1ELi1ELi16ELi8EEELb0EEEvNS1_6"
           "ParamsE")


def entry(name=PLAIN, arch="sm_90a", stack=0, stores=0, loads=0, registers=32, shared=""):
    return (f"ptxas info    : Compiling entry function '{name}' for '{arch}'\n"
            f"ptxas info    : Function properties for {name}\n"
            f"    {stack} bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads\n"
            f"ptxas info    : Used {registers} registers, used 1 barriers{shared}\n")


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = Path(self.folder.name)

    def tearDown(self):
        self.folder.cleanup()


class Report(Folder):
    def run_on(self, text, *arguments):
        path = self.root / "CMakeFiles/x.dir/a.cu.o.ptxas"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        command = [sys.executable, TOOLS / "kernel_resources.py", self.root, *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.returncode, done.stdout

    def test_a_clean_kernel_passes(self):
        status, text = self.run_on(entry() + entry(arch="sm_80", shared=", 2048 bytes smem"))
        self.assertEqual((status, text), (0, "2 kernels for sm_80, sm_90a: 0 broken assumptions\n"))

    def test_spills_and_stack_frames_are_named(self):
        status, text = self.run_on(entry(stack=24, stores=8, loads=12))
        self.assertEqual(status, 1)
        self.assertIn("spills 8 bytes of stores and 12 of loads", text)
        self.assertIn("stack frame of 24 bytes", text)

    def test_named_kernels_may_keep_a_few_bytes(self):
        teams = "_ZN6fathom3ops3moe16experts_teams_upILi1EEEvNS1_6ParamsE"
        self.assertEqual(self.run_on(entry(teams, stack=32, stores=32, loads=32))[0], 0)
        for beyond in ({"stack": 40}, {"loads": 36}, {"arch": "sm_120a", "stores": 4}):
            self.assertEqual(self.run_on(entry(teams, **beyond))[0], 1)

    def test_static_shared_memory_has_a_limit(self):
        status, text = self.run_on(entry(shared=", 50000 bytes smem, 400 bytes cmem[0]"))
        self.assertEqual(status, 1)
        self.assertIn("50000 bytes of static shared memory", text)

    def test_registers_must_leave_room_for_two_blocks_where_the_plan_counts_on_them(self):
        self.assertEqual(self.run_on(entry(HEADS16, registers=128))[0], 0)
        status, text = self.run_on(entry(HEADS16, registers=129))
        self.assertEqual(status, 1)
        self.assertIn("2 blocks of 256 threads", text)

    def test_only_leaves_other_kernels_out_and_fails_when_none_is_left(self):
        text = entry(stack=24, stores=8, loads=12) + entry(HEADS16, registers=128)
        self.assertEqual(self.run_on(text)[0], 1)
        self.assertEqual(self.run_on(text, "--only", "sparse_decode")[0], 0)
        status, text = self.run_on(text, "--only", "nothing_like_it")
        self.assertEqual(status, 1)
        self.assertIn("no kernel matches 'nothing_like_it'", text)

    def test_a_folder_without_reports_fails(self):
        done = subprocess.run([sys.executable, TOOLS / "kernel_resources.py", self.root], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("build the CUDA kernels first", done.stdout)

    def test_wrong_use_shows_the_usage(self):
        self.assertEqual(subprocess.run([sys.executable, TOOLS / "kernel_resources.py"], capture_output=True).returncode, 2)


class Launcher(Folder):
    def run_compiler(self, script):
        compiler = self.root / "nvcc"
        compiler.write_text("#!/bin/sh\n" + script)
        os.chmod(compiler, 0o755)
        target = self.root / "a.o"
        done = subprocess.run([TOOLS / "keep_ptxas_report", compiler, "-c", "a.cu", "-o", target], capture_output=True, text=True)
        report = self.root / "a.o.ptxas"
        return done, report.read_text() if report.exists() else None

    def test_the_report_is_kept_and_other_messages_pass(self):
        done, report = self.run_compiler("cat >&2 <<'END'\n" + entry() + "a.cu(3): warning: odd\nEND\n")
        self.assertEqual((done.returncode, done.stderr), (0, "a.cu(3): warning: odd\n"))
        self.assertIn("Used 32 registers", report)
        self.assertNotIn("odd", report)

    def test_a_failing_compilation_fails_with_its_message(self):
        done, _ = self.run_compiler("echo 'a.cu(1): error: no' >&2\nexit 2\n")
        self.assertEqual((done.returncode, done.stderr), (2, "a.cu(1): error: no\n"))


if __name__ == "__main__":
    unittest.main()
