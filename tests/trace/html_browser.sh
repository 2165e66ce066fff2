#!/bin/sh
# The HTML report of `fathom trace` in headless Chromium: it must load and be usable without a word on the console, in
# light and dark, at desk and phone width, and print. Screenshots are left in OUT for people to look at.
#
# usage: html_browser.sh FATHOM OUT [TRACE...]     (without traces: those of tests/trace/derived and, where present,
# real captures beside the repository). "a.json+b.json" is one report of two files. Exit status 77 when there is no Chromium: the check did not run.
set -u
fathom=$1
out=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)

. "$here/../html/browser.sh"
open_browser "$out"
if [ $# -eq 0 ]; then
  set -- "$here/derived/43_hostile_names.json" "$here/derived/01_truncated_mid_event.json" \
    "$here/derived/26_two_streams_overlap.json" "$here/derived/34_empty_events.json" \
    "$here/derived/26_two_streams_overlap.json+$here/derived/43_hostile_names.json"
  real=$here/../../../shared/traces/real
  for name in lightllm_h200_dsv3_decode_base_rank0.json sglang_mi300x_qwen3_8b_decode.json.gz \
    vllm_b200_gptoss120b_tp8_eager.json.gz megatron_a100_tp8_rank0.json.gz hta_a100_dlrm_control.json.gz; do
    [ -f "$real/$name" ] && set -- "$@" "$real/$name"
  done
  series=$real/lightllm_h200_dsv3_decode
  for name in base_rank1 opt01_rank0; do  # ranks of one run; before and after
    [ -f "${series}_$name.json.gz" ] && set -- "$@" "${series}_base_rank0.json+${series}_$name.json.gz"
  done
fi

for trace in "$@"; do
  name=$(basename "$trace" | sed 's/\.json.*//; s/[^A-Za-z0-9_]/_/g')
  old=$IFS
  IFS=+
  set -- $trace
  IFS=$old
  [ $# -gt 1 ] && name=${name}_and_more
  page=$out/$name.html
  "$fathom" trace "$@" --html "$page" >/dev/null
  status=$?
  if [ $status -ne 0 ] && [ $status -ne 3 ] || [ ! -s "$page" ]; then
    echo "FAILED: $name: fathom trace gave status $status"
    failed=1
    continue
  fi

  look_at "$name" "$here/html_browser_check.js" 4200 4000
  echo "checked $name"
done
close_browser
