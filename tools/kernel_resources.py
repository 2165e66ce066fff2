#!/usr/bin/env python3
"""Checks what the compiler says about every CUDA kernel of a build: no spills, no stack frame, and registers few enough
for the blocks on a multiprocessor that the kernel's plan counts on.

The reports (*.ptxas, written by tools/keep_ptxas_report during the build) hold one entry for each kernel and GPU
architecture. EXPECT below says what is assumed, KEPT which kernels may spill a few bytes; all others must not.

usage: kernel_resources.py BUILD_FOLDER [--table] [--only REGEX]
  --table        registers, shared memory and spills of every kernel
  --only REGEX   only kernels whose demangled name matches
exit status 1 when an assumption is broken or no report is found
"""
import re
import subprocess
import sys
from pathlib import Path

REGISTERS_PER_SM = 65536
STATIC_SHARED_LIMIT = 48 * 1024

# (pattern on the demangled name, threads of a block, blocks on a multiprocessor, architectures or None for all)
EXPECT = [
    # sparse attention decode: two blocks an SM for the instance with 16 heads (one m-tile), where shared memory has room
    # for them; one for the others
    (r"sparse_decode.*decode<.*Geometry<.*RowFormat\)\d+, (?:\(int\))?1, ", 256, 2, {"sm_90a"}),
    (r"sparse_decode.*decode<", 256, 1, None),
    (r"sparse_decode.*decode_(burst|cluster)<.*Burst<(?:\(int\))?1, ", 256, 2, {"sm_90a"}),
    (r"sparse_decode.*decode_(burst|cluster)<", 256, 1, None),
    (r"sparse_decode.*decode_wide_burst", 256, 1, {"sm_90a"}),
    (r"sparse_decode.*decode_wide", 384, 1, {"sm_90a"}),
    (r"linear_codes<(?:\(int\))?8>", 544, 2, {"sm_90a"}),
    (r"linear_codes<", 288, 3, {"sm_90a"}),
    (r"lab::gpu.*wgmma_kernel", 128, 1, None),
    (r"lab::gpu.*mma_kernel<", 256, 1, None),
    (r"lab::gpu.*fma_kernel", 1024, 1, None),
    (r"lab::gpu.*copy_kernel", 256, 6, None),
]

# (pattern, bytes that a thread may keep in memory, architectures): values of a whole piece of work, stored once for it
# and read at most once a stage, as the machine code shows. With more registers the kernel would not fit.
KEPT = [
    (r"experts_teams_(up|down)<", 32, {"sm_90a"}),
]

ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(sm_\w+)'")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers(?:.*?, (\d+) bytes smem)?")


def demangle(names):
    try:
        done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
        return dict(zip(names, done.stdout.splitlines()))
    except (OSError, subprocess.CalledProcessError):
        return {name: name for name in names}


def read_report(path):
    """Yields (mangled name, architecture, stack, spill stores, spill loads, registers, static shared bytes)."""
    name = arch = None
    stack = stores = loads = 0
    for line in path.read_text(errors="replace").splitlines():
        if found := ENTRY.search(line):
            name, arch = found.groups()
            stack = stores = loads = None
        elif name and (found := STACK.search(line)):
            stack, stores, loads = map(int, found.groups())
        elif name and (found := USED.search(line)):
            if stack is None:
                raise SystemExit(f"{path}: no stack frame line for {name} on {arch}")
            yield name, arch, stack, stores, loads, int(found.group(1)), int(found.group(2) or 0)
            name = None


def problems(name, arch, stack, stores, loads, registers, shared):
    kept = max((most for pattern, most, archs in KEPT if re.search(pattern, name) and arch in archs), default=0)
    if max(stack, stores, loads) <= kept:
        stack = stores = loads = 0
    if stores or loads:
        yield f"spills {stores} bytes of stores and {loads} of loads"
    if stack:
        yield f"has a stack frame of {stack} bytes (an array that is indexed at run time, or a spill)"
    if shared > STATIC_SHARED_LIMIT:
        yield f"takes {shared} bytes of static shared memory, the limit is {STATIC_SHARED_LIMIT}"
    for pattern, threads, blocks, archs in EXPECT:
        if re.search(pattern, name) and (archs is None or arch in archs):
            allocated = (registers + 7) // 8 * 8 * threads * blocks  # the hardware allocates registers by eights
            if allocated > REGISTERS_PER_SM:
                yield (f"uses {registers} registers: {blocks} blocks of {threads} threads an SM are assumed, "
                       f"which leaves {REGISTERS_PER_SM // (threads * blocks) // 8 * 8}")
            return


def main(arguments):
    table, only, folders = False, "", []
    rest = iter(arguments)
    for argument in rest:
        if argument == "--table":
            table = True
        elif argument == "--only":
            only = next(rest, "")
        else:
            folders.append(argument)
    if len(folders) != 1 or folders[0].startswith("-"):
        print(__doc__)
        return 2
    reports = sorted(Path(folders[0]).rglob("*.ptxas"))
    entries = [entry for report in reports for entry in read_report(report)]
    if not entries:
        print(f"{folders[0]}: no kernel in any *.ptxas report: build the CUDA kernels first")
        return 1
    readable = demangle(sorted({e[0] for e in entries}))
    entries = [e for e in entries if re.search(only, readable[e[0]])]
    if not entries:
        print(f"{folders[0]}: no kernel matches {only!r}")
        return 1
    if table:
        print(f"{'arch':<8} {'registers':>9} {'shared':>7} {'stack':>6} {'spills':>7}  kernel")
        for name, arch, stack, stores, loads, registers, shared in sorted(entries):
            print(f"{arch:<8} {registers:>9} {shared:>7} {stack:>6} {stores + loads:>7}  {readable[name][:150]}")
    wrong = [(readable[e[0]], e[1], text) for e in entries for text in problems(readable[e[0]], *e[1:])]
    for name, arch, text in wrong:
        print(f"{arch} {name[:200]}: {text}")
    archs = sorted({e[1] for e in entries})
    print(f"{len(entries)} kernels for {', '.join(archs)}: {len(wrong)} broken assumptions")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
