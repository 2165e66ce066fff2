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

browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
if [ -z "$browser" ]; then
  echo "SKIPPED: no chromium on this machine (install the package chromium); nothing was checked"
  exit 77
fi
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

mkdir -p "$out"
out=$(cd "$out" && pwd)
profile=$(mktemp -d)
trap 'rm -rf "$profile"' EXIT
failed=0
run=0

# browse NAME FILE FLAGS...: runs the browser; everything on the console is a failure.
browse() {
  what=$1 address=file://$2
  shift 2
  run=$((run + 1))  # a fresh profile for each run: no session to restore
  timeout 120 "$browser" --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$profile/$run" \
    --enable-logging=stderr --v=0 --virtual-time-budget=4000 "$@" "$address" >"$out/stdout" 2>"$out/stderr"
  status=$?
  if [ $status -ne 0 ] || grep -q 'CONSOLE' "$out/stderr"; then
    echo "FAILED: $what (status $status)"
    grep 'CONSOLE' "$out/stderr"
    failed=1
  fi
}

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

  # A copy with the check appended; the report's own policy lets it run only with the page's nonce.
  nonce=$(grep -o "nonce-[0-9a-f]*" "$page" | head -1 | cut -c7-)
  checked=$out/${name}_checked.html
  { cat "$page"; printf '<script nonce="%s">\n' "$nonce"; cat "$here/html_browser_check.js"; echo '</script>'; } >"$checked"
  phone=$out/${name}_phone.html
  printf '<!DOCTYPE html><title>phone</title><body style="margin:0"><iframe src="%s" width="390" height="4000" style="border:0"></iframe>\n' \
    "$(basename "$checked")" >"$phone"

  browse "$name: use" "$checked" --window-size=1280,1000 --dump-dom
  grep -q 'data-checked="yes"' "$out/stdout" || { echo "FAILED: $name: the check did not pass or did not run"; failed=1; }
  browse "$name: light" "$page" --window-size=1280,4200 --screenshot="$out/${name}_light.png" --blink-settings=preferredColorScheme=1
  browse "$name: dark" "$page" --window-size=1280,4200 --screenshot="$out/${name}_dark.png" --blink-settings=preferredColorScheme=0
  browse "$name: phone" "$phone" --window-size=500,4000 --screenshot="$out/${name}_phone.png"
  browse "$name: print" "$page" --print-to-pdf="$out/${name}.pdf" --blink-settings=preferredColorScheme=0
  for made in "${name}_light.png" "${name}_dark.png" "${name}_phone.png" "${name}.pdf"; do
    [ -s "$out/$made" ] || { echo "FAILED: $name: no $made"; failed=1; }
  done
  echo "checked $name"
done
rm -f "$out/stdout" "$out/stderr"
[ $failed -eq 0 ] && echo "passed; screenshots in $out"
exit $failed
