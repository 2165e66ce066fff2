#!/bin/sh
# Processor time of the server for each token: fathom beside cpp-httplib and uvicorn, each with the same stub behind it
# (200 streams, a token each 20 ms) and read by the same client, which checks every token.
# usage: run.sh BENCH_SERVE [PYTHON]     needs libcpp-httplib-dev, and the PyPI packages uvicorn, starlette, uvloop and
# httptools for PYTHON
set -eu
bench=$1 python=${2:-python3} here=$(dirname "$0")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
c++ -std=c++20 -O2 -pthread -o "$folder/stub_httplib" "$here/stub_httplib.cc" -lcpp-httplib
measure() {  # NAME FILTER
  "$bench" --benchmark_filter="$2" --benchmark_format=json >"$folder/$1.json" 2>"$folder/$1.log" || { cat "$folder/$1.log"; exit 1; }
}
measure fathom '^Load/200/0/'
OTHER_SERVER="$folder/stub_httplib" measure cpp-httplib '^Other/200/'
OTHER_SERVER="$python $here/stub_uvicorn.py" measure uvicorn '^Other/200/'
"$python" - "$folder" <<'PYTHON'
import json, sys
first = None
print(f"{'server':<12} {'us/token':>9} {'of fathom':>10} {'p99 gap ms':>11} {'lost':>5}")
for name in ("fathom", "cpp-httplib", "uvicorn"):
    b = json.load(open(f"{sys.argv[1]}/{name}.json"))["benchmarks"][0]
    if b.get("error_occurred"):
        sys.exit(f"{name}: {b['error_message']}")
    first = first or b["us_token"]
    print(f"{name:<12} {b['us_token']:>9.1f} {b['us_token'] / first:>9.1f}x {b['gap_p99']:>11.1f} {b['lost']:>5.0f}")
PYTHON
