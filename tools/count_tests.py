#!/usr/bin/env python3
"""Counts the tests of ctest's JUnit files and shows the ones that failed.

usage: count_tests.py FILE...    prints "passed failed skipped" on the last line
A test that could not be run, for example because its program is missing, counts as failed.
"""
import sys
import xml.etree.ElementTree as ET

SHOWN_LINES = 30  # of the output of one failed test


def main(paths):
    passed = failed = skipped = 0
    for path in paths:
        for case in ET.parse(path).getroot().iter("testcase"):
            name, status = case.get("name"), case.get("status")
            if status == "run" and case.find("failure") is None:
                passed += 1
            elif case.find("skipped") is not None and case.find("skipped").get("message", "").startswith("SKIP"):
                skipped += 1
            elif status == "disabled":
                skipped += 1
            else:
                failed += 1
                output = (case.findtext("system-out") or "").strip().splitlines()
                print(f"--- failed: {name}")
                for line in output[-SHOWN_LINES:]:
                    print("    " + line)
    print(passed, failed, skipped)


if __name__ == "__main__":
    main(sys.argv[1:])
