#!/usr/bin/env bash
# Checks and times the CUDA kernels on a machine with a GPU, in one command and at most eight minutes.
#
#   tools/gpu_check.sh pack [BUILD]   where it was built (BUILD: build/cuda): collects program, library and the shared
#                                     libraries they need, stripped, into build/gpu_pack; carry that folder along
#   tools/gpu_check.sh [FOLDER]       on the GPU machine: runs what lies in build/gpu_pack, prints a short table last;
#                                     logs and JSON go to FOLDER (default $OUT, else build/gpu_check); OPS=A,B checks
#                                     only these operations
#
# Steps: every CUDA variant against its reference on random cases; compute-sanitizer memcheck and racecheck on a few of
# them; the torch wrapper against float64; timings, cold and warm, over batch sizes; the same planned as other GPUs.
# A step that cannot run here (no compute-sanitizer, no torch) is listed as such, never as passed.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
pack=build/gpu_pack

die() { printf 'gpu_check: %s\n' "$*" >&2; exit 1; }

make_pack() {
  local build=${1:-build/cuda} files=$pack/files binary
  for binary in "$build/bin/fathom" "$build/lib/libfathom_kernels.so"; do
    [ -f "$binary" ] || die "$binary is missing: build the targets fathom and fathom_kernels with FATHOM_CUDA=ON first"
  done
  rm -rf "$pack" && mkdir -p "$files/deps" || die "cannot write $pack"
  strip --strip-debug -o "$files/fathom" "$build/bin/fathom" || die "strip failed"
  strip --strip-debug -o "$files/libfathom_kernels.so" "$build/lib/libfathom_kernels.so" || die "strip failed"
  # What a bare Linux machine has stays behind: glibc, libstdc++, libgcc.
  ldd "$files/fathom" "$files/libfathom_kernels.so" | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u |
    grep -vE '/(libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s|ld-linux[^/]*)\.so' | while read -r library; do
    cp -L "$library" "$files/deps/" || exit 1
  done || die "cannot collect the shared libraries"
  git rev-parse --short=12 HEAD >"$files/commit" 2>/dev/null || echo unknown >"$files/commit"
  tar -C "$files" -czf "$pack/pack.tar.gz" . && rm -rf "$files" || die "tar failed"
  du -h "$pack/pack.tar.gz" | sed 's/\t/ in /'
}

case "${1-}" in
  pack) make_pack "${2-}"; exit ;;
  -h | --help) sed -n '2,14s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit ;;
esac

[ -f "$pack/pack.tar.gz" ] || die "$pack/pack.tar.gz is missing: run 'tools/gpu_check.sh pack' where it was built, carry $pack"
unpacked=$(mktemp -d) && trap 'rm -rf "$unpacked"' EXIT && tar -C "$unpacked" -xzf "$pack/pack.tar.gz" || die "cannot unpack $pack"
out=${1:-${OUT:-build/gpu_check}}
mkdir -p "$out" || die "cannot write $out"
export LD_LIBRARY_PATH=$unpacked/deps${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fathom=$unpacked/fathom
begin=$SECONDS limit=${LIMIT_SECONDS:-470}
failures=0 table=

note() { table+=$(printf '%-34s %-8s %4s s  %s' "$1" "$2" "$3" "$4")$'\n'; }

# step NAME SECONDS COMMAND...: runs within its own and the total limit; the last line of its output goes to the table.
step() {
  local name=$1 seconds=$2 log start=$SECONDS left=$((limit - (SECONDS - begin))) status
  shift 2
  log=$out/$(printf %s "$name" | tr -c 'a-zA-Z0-9\n' _).log
  if [ "$left" -lt 10 ]; then note "$name" "NOT RUN" 0 "no time left"; failures=$((failures + 1)); return 1; fi
  [ "$seconds" -lt "$left" ] || seconds=$left
  printf '== %s\n' "$name"
  timeout --kill-after=5 "$seconds" "$@" >"$log" 2>&1
  status=$?
  tail -n 60 "$log"
  case $status in
    0) note "$name" ok $((SECONDS - start)) "$(tail -n 1 "$log" | cut -c1-90)" ;;
    124 | 137) note "$name" TIMEOUT $((SECONDS - start)) "limit $seconds s"; failures=$((failures + 1)) ;;
    *) note "$name" FAILED $((SECONDS - start)) "$(grep -m1 -E 'WRONG|fathom:|ERROR SUMMARY: [1-9]|RACECHECK SUMMARY: [1-9]|Error:|FAILED' "$log" | cut -c1-110)"
       failures=$((failures + 1)) ;;
  esac
  return "$status"
}

printf 'commit %s, %s\n' "$(cat "$unpacked/commit")" "$(date -u '+%Y-%m-%d %H:%M UTC')"
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null || echo "no nvidia-smi"
"$fathom" kernels --json >"$out/list.json" || die "the program does not start here"
# Operations that have CUDA variants, and the names of those: all, of attention, of the rest.
read -r ops variants attention_variants others other_variants < <(python3 - "$out/list.json" <<'PYTHON'
import json, os, sys
found = json.load(open(sys.argv[1]))
cuda = {o["op"]: [v["name"] for v in o["variants"] if v["backend"] == "cuda"] for o in found["ops"]}
cuda = {op: names for op, names in cuda.items() if names}
if wanted := [op for op in os.environ.get("OPS", "").split(",") if op]:
    if unknown := [op for op in wanted if op not in cuda]:
        sys.exit(f"gpu_check: OPS names {unknown[0]}, which has no CUDA variant; known: {', '.join(cuda)}")
    cuda = {op: cuda[op] for op in wanted}
rest = {op: names for op, names in cuda.items() if op != "sparse_attention"}
names = lambda ops: ",".join(dict.fromkeys(n for op in ops for n in ops[op])) or "-"
print(",".join(cuda) or "-", names(cuda), ",".join(cuda.get("sparse_attention", [])) or "-", ",".join(rest) or "-", names(rest))
PYTHON
)
[ -n "$ops" ] && [ "$ops" != - ] || die "this build has no CUDA variant of any operation"
seed=$((RANDOM * 32768 + RANDOM))
lab=("$fathom" kernels --op "$ops" --variant "$variants")
attention=("$fathom" kernels --op sparse_attention --variant "$attention_variants")

step "checks, 150 random cases" 120 "${lab[@]}" --check-only --cases 150 --seed "$seed"
if sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null); then
  for tool in memcheck racecheck; do
    step "$tool" 90 "$sanitizer" --tool "$tool" --error-exitcode 9 "${lab[@]}" --check-only --cases 4 --bare --seed 7
  done
else
  note "compute-sanitizer" "NOT RUN" 0 "not installed here"
fi
if python3 -c 'import torch' 2>/dev/null; then
  step "python, torch float64" 90 python3 python/test_fathom_kernels.py --library "$unpacked/libfathom_kernels.so"
else
  note "python, torch float64" "NOT RUN" 0 "torch is not installed here"
fi
if [ "$attention_variants" != - ]; then
  step "attention, c4, all batches" 60 "${attention[@]}" --time-only --shape c4 --batch 1,2,4,8,16,32,64,128 --seconds 0.05
  step "attention, other shapes" 70 "${attention[@]}" --time-only --shape c128-128k,c128-1m,window,verify6,verify6-8heads --batch 1,8,64 --seconds 0.05
  for gpu in rtxpro6000 rtx5090 rtx4090 a100 gb10; do
    step "attention planned as $gpu" 40 "${attention[@]}" --as "$gpu" --cases 20 --seed "$seed" --shape c4 --batch 1,8,64 --seconds 0.05
  done
fi
[ "$others" = - ] || step "other operations" 240 "$fathom" kernels --op "$others" --variant "$other_variants" --time-only --seconds 0.05

printf '\n%s\ncommit %s, seed %s, %d s\n' "$table" "$(cat "$unpacked/commit")" "$seed" $((SECONDS - begin))
left_out=$(printf %s "$table" | grep -c 'NOT RUN')
if [ "$failures" -ne 0 ]; then echo "$failures steps FAILED"
elif [ "$left_out" -ne 0 ]; then echo "all steps that ran passed; $left_out did not run"
else echo "all steps passed"; fi
[ "$failures" -eq 0 ]
