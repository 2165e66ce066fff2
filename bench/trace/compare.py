#!/usr/bin/env python3
"""compare.py FATHOM TRACE.json[.gz] [--copies N] [--runs N] [--work FOLDER]

Times `fathom trace` against Python's json.load and the plain aggregation of kernels, side by side: the runs alternate,
each in a process of its own, and the medians and their ratio are printed, with peak memory. TRACE is multiplied to
about 510 MB and 2 million events with mkbig.py, plain and as gzip. HolisticTraceAnalysis and Perfetto's trace_processor
are timed beside them when this Python has them (pip install HolisticTraceAnalysis perfetto); one that fails is told
with its reason. Before timing, calls and total time of the longest kernel are compared with those of json.load.
"""
import argparse, importlib.util, json, os, re, statistics, subprocess, sys, time

PLAIN = r"""
import sys, json, gzip
path = sys.argv[1]
with (gzip.open(path, "rt", encoding="utf-8") if path.endswith(".gz") else open(path, encoding="utf-8")) as f:
    events = json.load(f)["traceEvents"]
total = {}
for e in events:
    if e.get("ph") == "X" and e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
        row = total.setdefault(e["name"], [0, 0.0])
        row[0] += 1
        row[1] += e.get("dur", 0)
for name, (calls, us) in sorted(total.items(), key=lambda kv: -kv[1][1])[:1]:
    print(calls, round(us, 3))
"""
PERFETTO = r"""
import sys
from perfetto.trace_processor import TraceProcessor
tp = TraceProcessor(trace=sys.argv[1])
for r in tp.query("select count(*) c, sum(dur) d from slice where category = 'kernel' group by name order by d desc limit 1"):
    print(r.c, r.d / 1000)
"""
HTA = r"""
import sys
from hta.common.trace import Trace
t = Trace(trace_files={0: sys.argv[1]}, trace_dir="")
t.parse_traces()
df = t.get_trace(0)
print(df.groupby("s_name" if "s_name" in df else "name").dur.sum().max())
"""


def run(command):
    """Wall seconds, processor seconds and peak resident MB of one process."""
    start = time.monotonic()
    p = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out = p.stdout.read()
    _, status, usage = os.wait4(p.pid, 0)
    p.returncode = os.waitstatus_to_exitcode(status)
    if p.returncode:
        raise RuntimeError("failed (%d): %s" % (p.returncode, p.stderr.read().decode(errors="replace").strip()[-300:]))
    return time.monotonic() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, out.decode(errors="replace")


def check(fathom, python, path):
    """The program and json.load must agree before their times mean anything."""
    ours = json.loads(subprocess.check_output([fathom, "trace", "--json", "-", path]))["traces"][0]["ranking"][0]
    calls, us = subprocess.check_output([python, "-c", PLAIN, path]).split()
    if ours["calls"] != int(calls) or abs(ours["total_ns"] - 1000 * float(us)) > 1:
        sys.exit("%s: fathom has %d calls, %d ns; json.load %s calls, %s us" % (path, ours["calls"], ours["total_ns"], calls.decode(), us.decode()))
    print("same longest kernel: %d calls, %d ns" % (ours["calls"], ours["total_ns"]))


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("fathom"), a.add_argument("trace")
    a.add_argument("--copies", type=int, default=0, help="0: as many as give 510 MB")
    a.add_argument("--runs", type=int, default=3)
    a.add_argument("--work", default="/tmp")
    o = a.parse_args()
    here = os.path.dirname(os.path.abspath(__file__))
    stem = os.path.join(o.work, "fathom_bench_" + re.sub(r"\W", "_", os.path.basename(o.trace)))
    big = stem + ".json"
    if not os.path.exists(big):
        copies = o.copies
        if not copies:
            subprocess.check_call([sys.executable, os.path.join(here, "mkbig.py"), o.trace, big, "2"])
            copies = max(1, round(510e6 / (os.path.getsize(big) / 2)))
        subprocess.check_call([sys.executable, os.path.join(here, "mkbig.py"), o.trace, big, str(copies)])
    if not os.path.exists(big + ".gz"):
        subprocess.check_call(["gzip", "-k", "-6", big])
    peers = [("python json.load", [sys.executable, "-c", PLAIN])]
    if importlib.util.find_spec("perfetto"):
        peers.append(("perfetto trace_processor", [sys.executable, "-c", PERFETTO]))
    if importlib.util.find_spec("hta"):
        peers.append(("HolisticTraceAnalysis", [sys.executable, "-c", HTA]))
    print("load average %.1f on %d processors" % (os.getloadavg()[0], os.cpu_count()))
    for path in (big, big + ".gz"):
        print("\n%s: %.0f MB" % (os.path.basename(path), os.path.getsize(path) / 1e6))
        check(o.fathom, sys.executable, path)
        times, failed = {}, {}
        for _ in range(o.runs):
            for name, command in [("fathom trace", [o.fathom, "trace"])] + peers:
                if name in failed:
                    continue
                try:
                    times.setdefault(name, []).append(run(command + [path]))
                except RuntimeError as e:
                    failed[name] = str(e)
                    times.pop(name)
        for name, why in failed.items():
            print("%-26s %s" % (name, why))
        ours = statistics.median(t[0] for t in times["fathom trace"])
        ours_cpu = statistics.median(t[1] for t in times["fathom trace"])
        for name, t in times.items():
            wall, cpu = statistics.median(x[0] for x in t), statistics.median(x[1] for x in t)
            print("%-26s %8.2f s wall (%.2f to %.2f) %8.2f s processor %8.0f MB peak   %6.1fx wall, %.1fx processor" % (
                name, wall, min(x[0] for x in t), max(x[0] for x in t), cpu, max(x[2] for x in t), wall / ours, cpu / ours_cpu))


if __name__ == "__main__":
    main()
