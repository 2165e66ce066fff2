#!/usr/bin/env python3
"""`fathom trace` as a user calls it: exit status, what goes to which stream, and the files it writes.

usage: command_test.py FATHOM
"""
import gzip
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

FATHOM = pathlib.Path(sys.argv.pop()).resolve() if len(sys.argv) > 1 else None
ROOT = pathlib.Path(__file__).resolve().parents[2]
DERIVED = ROOT / "tests" / "trace" / "derived"


def kernel(name, start, duration, rank=None):
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": start, "dur": duration,
            "args": {"device": 0, "stream": 7}}


def trace(events, rank=None):
    head = {"distributedInfo": {"rank": rank, "world_size": 2}} if rank is not None else {}
    return json.dumps({"schemaVersion": 1, **head, "traceEvents": events})


class TraceCommand(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)

    def run_trace(self, *words, status=0):
        done = subprocess.run([FATHOM, "trace", *map(str, words)], cwd=self.path, capture_output=True, check=False)
        out, err = done.stdout.decode(), done.stderr.decode()
        self.assertEqual(done.returncode, status, out + err)
        return out, err

    def write(self, name, text):
        (self.path / name).write_text(text)
        return self.path / name

    def test_the_first_line_is_the_answer(self):
        out, _ = self.run_trace(DERIVED / "00_base.json")
        self.assertTrue(out.startswith("69.6 % of GPU time is one kernel: gemm_a (2 calls"), out)

    def test_a_damaged_file_is_partial_and_status_3(self):
        out, _ = self.run_trace(DERIVED / "01_truncated_mid_event.json", status=3)
        self.assertIn("PARTIAL: the file is damaged or cut at byte ", out)
        document, _ = self.run_trace(DERIVED / "01_truncated_mid_event.json", "--json", "-", status=3)
        self.assertTrue(json.loads(document)["traces"][0]["import"]["partial"])

    def test_what_is_no_trace_is_named_with_status_1(self):
        for name, word in [("51_zip.json.zip", "zip"), ("35_empty_file.json", "empty file"), ("36_not_a_trace.json", "execution trace")]:
            out, err = self.run_trace(DERIVED / name, status=1)
            self.assertEqual(out, "")
            self.assertIn(word, err)
            self.assertEqual(err.count("\n"), 1, err)

    def test_usage_is_status_2(self):
        for words in [["--width"], ["--nonsense"], ["--batch", "0", DERIVED / "00_base.json"]]:
            self.run_trace(*words, status=2)

    def test_a_cut_gzip_file_gives_its_whole_events(self):
        whole = gzip.compress(trace([kernel(f"k{i % 9}", 10 * i + 1, 5 + i % 3) for i in range(4000)]).encode())
        (self.path / "cut.json.gz").write_bytes(whole[:len(whole) // 2])
        document, _ = self.run_trace("cut.json.gz", "--json", "-", status=3)
        read = json.loads(document)["traces"][0]
        self.assertGreater(read["import"]["events"], 500)
        self.assertLess(read["import"]["events"], 4000)

    def test_of_several_files_one_that_is_no_trace_is_told_and_left_out(self):
        self.write("a.json", trace([kernel("k", 1, 5)]))
        self.write("b.txt.json", "no trace")
        out, err = self.run_trace("a.json", "b.txt.json", status=3)
        self.assertIn("left out:", err)
        self.assertIn("100.0 % of GPU time", out)

    def test_two_files_are_before_and_after(self):
        self.write("before.json", trace([kernel("slow", 1, 80), kernel("same", 90, 20)]))
        self.write("after.json", trace([kernel("fast", 1, 30), kernel("same", 40, 20)]))
        out, _ = self.run_trace("before.json", "after.json")
        self.assertIn("slow", out)
        self.assertLess(out.index("fast"), out.index("% of GPU time is one kernel"))
        document, _ = self.run_trace("before.json", "after.json", "--json", "-")
        changes = {row["name"]: row["change"] for row in json.loads(document)["diff"]["kernels"]}
        self.assertEqual(changes["same"], "both")

    def test_a_folder_of_ranks_is_compared(self):
        (self.path / "ranks").mkdir()
        for rank in range(2):
            self.write(f"ranks/{rank}.json", trace([kernel("gemm", 1, 50 + 40 * rank),
                                                    kernel("ncclDevKernel_AllReduce", 91, 60 - 40 * rank)], rank))
        out, _ = self.run_trace("ranks")
        self.assertTrue(out.startswith("Ranks wait "), out)
        self.assertIn("rank 1 arrives last in 1 of 1 collectives", " ".join(out.split()))

    def test_markdown_is_appended_each_time(self):
        for _ in range(2):
            self.run_trace(DERIVED / "00_base.json", "--md", "PROFILE_FINDINGS.md")
        text = (self.path / "PROFILE_FINDINGS.md").read_text()
        self.assertEqual(text.count("# Findings from GPU traces"), 1)
        self.assertEqual(text.count(": 00\\_base.json"), 2)

    def test_rules_of_a_user_and_what_they_decide(self):
        rules = self.write("my.rules", "[spec: Speculation]\ngemm_a\n")
        out, _ = self.run_trace("--rules", rules, "--explain", "gemm_a")
        self.assertIn("gemm_a: spec (", out)
        self.assertIn("line 2: gemm_a)", out)
        out, _ = self.run_trace("--rules", rules, DERIVED / "00_base.json")
        self.assertIn("Speculation", out)
        broken = self.write("broken.rules", "gemm\n")
        _, err = self.run_trace("--rules", broken, DERIVED / "00_base.json", status=1)
        self.assertIn("broken.rules line 1", err)

    def test_json_has_what_its_document_describes(self):
        """docs/trace-json.md: each member of a document is described, and each member described first in a row exists."""
        text = (ROOT / "docs" / "trace-json.md").read_text()
        document, _ = self.run_trace(DERIVED / "00_base.json", "--json", "-")
        read = json.loads(document)
        self.assertEqual(read["schema"], "fathom-trace-1")
        missing = set()

        def look(value, free):
            if isinstance(value, list):
                for one in value:
                    look(one, free)
            elif isinstance(value, dict):
                for key, inner in value.items():
                    if not free and f"`{key}`" not in text:
                        missing.add(key)
                    look(inner, key in ("categories", "phases") and isinstance(inner, dict))
        look(read, False)
        self.assertEqual(missing, set())

    def test_gpu_and_model_names_that_are_unknown_are_refused(self):
        _, err = self.run_trace(DERIVED / "00_base.json", "--model", "v4-flash", "--gpu", "Voodoo 2", status=1)
        self.assertIn("not a GPU", err)
        self.run_trace(DERIVED / "00_base.json", "--model", "no-model", status=2)


if __name__ == "__main__":
    unittest.main()
