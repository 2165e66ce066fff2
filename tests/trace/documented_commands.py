#!/usr/bin/env python3
"""Runs the commands of a document and checks that they still print what it shows.

In a block that begins with ```console, a line "$ command" is run (fathom is the program given here, python3 what it is
in the path) and the lines below it must stand in its output, whole and in this order; "..." stands for any lines. All
commands run in one empty folder, in the order of the document.

usage: documented_commands.py DOCUMENT FATHOM     exit status 1 and the place when something differs
"""
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile


def blocks(text):
    """Yields (line number, command, expected lines) of each command."""
    inside, entry = False, None
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            if entry:
                yield entry
            inside, entry = line.strip() == "```console", None
        elif inside and line.startswith("$ "):
            if entry:
                yield entry
            entry = (number, line[2:], [])
        elif inside and entry:
            entry[2].append(line)


def missing(expected, output):
    """The first expected line that does not stand in the output behind those before it, or None."""
    at, anywhere = 0, False
    for line in expected:
        if line == "...":
            anywhere = True
            continue
        found = next((i for i in range(at, len(output)) if output[i] == line), None)
        if found is None or (found != at and not anywhere):
            return line
        at, anywhere = found + 1, False
    return None


def main():
    document, fathom = pathlib.Path(sys.argv[1]).resolve(), str(pathlib.Path(sys.argv[2]).resolve())
    root = pathlib.Path(__file__).resolve().parents[2]
    ran = 0
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "examples").symlink_to(root / "examples")
        for number, command, expected in blocks(document.read_text(encoding="utf-8")):
            words = shlex.split(command)
            if words[0] == "fathom":
                words[0] = fathom
            done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
            ran += 1
            lost = missing(expected, [re.sub(r"\s+$", "", line) for line in done.stdout.splitlines()])
            if done.returncode != 0 or lost is not None:
                print(f"{document}:{number}: $ {command}\nexit status {done.returncode}; "
                      f"{'not printed where expected: ' + lost if lost is not None else ''}\n{done.stdout}{done.stderr}")
                return 1
    if ran == 0:
        print(f"{document}: no command found")
        return 1
    print(f"{ran} commands print what {document.name} shows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
