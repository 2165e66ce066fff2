#!/usr/bin/env python3
"""Checks the rules that keep the source readable, and prints one line, FILE:LINE: what, for each violation.

Layers     a folder of src/ includes only from the folders that LAYERS allows it (its tests and benchmarks may use more).
           Device code (.cu, .cuh and everything it includes) uses the standard library and the CUDA toolkit alone.
           Headers that take seconds to compile stay out of our own headers.
Headers    #pragma once (not in the -inl.h files that Highway includes once for each target; C headers in include/ may
           have a guard instead); no "using namespace".
Sizes      files: a warning past 500 lines, an error past 600; functions: an error past 120 lines.

usage: layers.py [ROOT]     exit status 1 when there is an error; warnings alone are 0
"""
import re
import sys
from pathlib import Path

# Each folder with the folders it may include from, besides itself. The order is the order of docs/architecture.md.
BASE = ["base"]
FORMATS = BASE + ["formats"]
ENGINE = FORMATS + ["text", "ops", "model", "cache", "dist", "profile"]
LAYERS = {
    "base": [],
    "formats": BASE,
    "text": FORMATS,
    "ops": BASE,
    "dist": BASE + ["ops"],
    "model": FORMATS + ["ops", "dist"],
    "cache": FORMATS + ["ops", "dist", "model"],
    "profile": FORMATS,
    "engine": ENGINE,
    "lab": BASE + ["ops"],
    "capi": BASE + ["ops", "lab"],
    "html": BASE,
    "trace": FORMATS + ["html"],
    "plan": FORMATS,
    "bench": ENGINE + ["engine", "plan", "html"],
    "doctor": ENGINE + ["engine", "lab", "trace", "plan", "bench"],
    "serve": ENGINE + ["engine"],
    "cli": ENGINE + ["engine", "lab", "trace", "plan", "html", "bench", "doctor", "serve"],
}
FILE_WARNING, FILE_LIMIT, FUNCTION_LIMIT = 500, 600, 120
# The one place where the product names a test's file: kernels compile for the host against the emulator of the tests.
TEST_HOOKS = {("src/ops/device/gpu.cuh", "ops/gpu_emulator.h")}
SOURCE_SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}
HEADER_SUFFIXES = {".h", ".cuh"}
HEAVY = re.compile(r"nlohmann/(?!json_fwd)|CLI/|boost/|simdjson|pcre2|sqlite3|spdlog/|tbb/")
THIRD_PARTY = re.compile(HEAVY.pattern + r"|fmt/|hwy/|gtest/|isa-l|zstd|xxhash|prometheus/|ucp/|benchmark/")
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')

# Comments, string and character literals: what must not be mistaken for code. Digit separators (1'000) are kept apart.
NOT_CODE = re.compile(
    r'//(?:\\\n|[^\n])*|/\*.*?\*/|R"([^()\\\s]{0,16})\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Fa-f])\'(?:\\.|[^\'\\\n])+\'', re.S)
CONTAINER = re.compile(r"^(?:template\b.*?>\s*)?(?:inline\s+)?(?:namespace|class|struct|union|enum|extern)\b", re.S)
FUNCTION_TAIL = re.compile(
    r"\)\s*(?:const|volatile|noexcept(?:\s*\(.*\))?|override|final|mutable|try|&&?|->.*|requires.*|:[^:].*|\s)*$", re.S)
MEMBER_INIT = re.compile(r"(?:\)\s*(?:noexcept\s*)?:|,)\s*[\w:]+(?:<[^{}]*>)?\s*$", re.S)


def blank(match):
    """Same line count, no content; a string stays an (empty) expression."""
    text = match.group(0)
    kept = "\n" * text.count("\n")
    return kept if text.startswith("/") else '""' + kept


def without_comments(text):
    return NOT_CODE.sub(blank, text)


def functions(code):
    """Yields (first line, last line, name) of each function body in comment-free code, outermost only."""
    code = re.sub(r"^[ \t]*#(?:\\\n|[^\n])*", lambda m: "\n" * m.group(0).count("\n"), code, flags=re.M)
    line, depth, containers = 1, 0, []   # containers: depths at which a namespace or class is open
    statement, statement_line = "", 1
    body_depth = body_start = None
    name = ""
    for token in re.finditer(r"[{};\n]|[^{};\n]+", code):
        text = token.group(0)
        if text == "\n":
            line += 1
            statement += " "
        elif text == "{":
            if body_depth is None:
                head = statement.strip()
                if CONTAINER.match(head) and not FUNCTION_TAIL.search(head):
                    containers.append(depth)
                    statement = ""
                elif MEMBER_INIT.search(head) and ")" in head and not head.endswith(")"):
                    containers.append(None)   # member initialiser braces: the statement goes on
                elif FUNCTION_TAIL.search(head) and not head.endswith("="):
                    body_depth, body_start = depth, statement_line
                    found = re.search(r"([~\w:]+|operator\s*\S+)\s*\(", head)
                    name = found.group(1) if found else "?"
                else:
                    containers.append(None)   # an initialiser
            depth += 1
        elif text == "}":
            depth -= 1
            if body_depth is not None:
                if depth == body_depth:
                    yield body_start, line, name
                    body_depth, statement = None, ""
            elif containers:
                if containers.pop() is None:
                    statement += "()"
                else:
                    statement = ""
        elif text == ";":
            if body_depth is None and (not containers or containers[-1] is not None):
                statement = ""
        elif body_depth is None and (not containers or containers[-1] is not None):
            if not statement.strip() and text.strip():
                statement = ""
                statement_line = line
            statement += re.sub(r"^\s*(?:public|private|protected)\s*:(?!:)", "", text)


class Checker:
    def __init__(self, root):
        self.root, self.errors, self.warnings = root, [], []
        self.includes = {}   # file -> [(line, bracket, name)]

    def error(self, path, line, text):
        self.errors.append(f"{path.relative_to(self.root)}:{line}: {text}")

    def sources(self, *folders):
        for folder in folders:
            for path in sorted((self.root / folder).rglob("*")):
                if path.suffix in SOURCE_SUFFIXES and path.is_file():
                    yield path

    def check(self):
        for path in self.sources("src", "include", "tests", "bench"):
            self.check_file(path)
        for path in self.sources("src"):
            if path.suffix in {".cu", ".cuh"}:
                self.check_device(path)

    def check_file(self, path):
        text = path.read_text(encoding="utf-8", errors="replace")
        code = without_comments(text)
        is_header = path.suffix in HEADER_SUFFIXES
        self.includes[path] = [
            (number, *found.groups())
            for number, line in enumerate(text.splitlines(), 1) if (found := INCLUDE.match(line))]
        self.check_size(path, text, code)
        if is_header:
            guarded = re.search(r"^#ifndef (FATHOM_\w+_H)\n#define \1$", text, re.M) and path.is_relative_to(self.root / "include")
            if not (re.search(r"^#pragma once$", text, re.M) or guarded or path.name.endswith("-inl.h")):
                self.error(path, 1, "header without #pragma once")
            for number, line in enumerate(code.splitlines(), 1):
                if re.search(r"\busing\s+namespace\b", line):
                    self.error(path, number, "using namespace in a header")
        for number, bracket, name in self.includes[path]:
            if is_header and bracket == "<" and HEAVY.match(name):
                self.error(path, number, f"<{name}> is slow to compile: include it in a .cpp only")
            if bracket == '"':
                self.check_include(path, number, name)

    def check_size(self, path, text, code):
        lines = text.count("\n")
        if lines > FILE_LIMIT:
            self.error(path, lines, f"{lines} lines in the file, the limit is {FILE_LIMIT}")
        elif lines > FILE_WARNING:
            self.warnings.append(f"{path.relative_to(self.root)}:{lines}: warning: {lines} lines, aim at {FILE_WARNING}")
        for first, last, name in functions(code):
            if last - first + 1 > FUNCTION_LIMIT:
                self.error(path, first, f"{name} has {last - first + 1} lines, the limit is {FUNCTION_LIMIT}")

    def check_include(self, path, number, name):
        parts = path.relative_to(self.root).parts
        if parts[0] != "src":
            return
        if THIRD_PARTY.match(name) or (str(path.relative_to(self.root)), name) in TEST_HOOKS:
            return
        if not any((self.root / base / name).is_file() for base in ("src", "include")):
            self.error(path, number, f'"{name}" is not a file below src/ or include/ (paths start there)')
            return
        own, other = parts[1], name.split("/")[0]
        if path.stem.endswith(("_test", "_bench")):
            return
        if own not in LAYERS:
            self.error(path, 1, f"src/{own}/ is no layer: add it to LAYERS in tools/layers.py and docs/architecture.md")
        elif other in LAYERS and other != own and other not in LAYERS[own]:
            allowed = ", ".join(LAYERS[own]) or "nothing"
            self.error(path, number, f'src/{own}/ includes "{name}", but may include from {allowed} only')

    def check_device(self, start):
        seen, queue = set(), [(start, None, None)]
        while queue:
            path, via_file, via_line = queue.pop()
            if path in seen or path not in self.includes:
                continue
            seen.add(path)
            for number, bracket, name in self.includes[path]:
                at_file, at_line = (path, number) if via_file is None else (via_file, via_line)
                if bracket == '"':
                    target = self.root / "src" / name
                    queue.append((target, at_file, at_line))
                elif THIRD_PARTY.match(name):
                    through = "" if path == start else f" through {path.relative_to(self.root)}"
                    self.error(at_file, at_line, f"device code includes <{name}>{through}: standard library and CUDA only")


def main(arguments):
    if len(arguments) > 1 or (arguments and arguments[0].startswith("-")):
        print(__doc__)
        return 2
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    if not (root / "src").is_dir():
        print(f"{root}: has no src/ folder")
        return 2
    checker = Checker(root)
    checker.check()
    for line in checker.warnings + sorted(set(checker.errors)):
        print(line)
    return 1 if checker.errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
