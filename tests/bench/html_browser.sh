#!/bin/sh
# The HTML report of `fathom bench` in headless Chromium: it must load and be usable without a word on the console, in light
# and dark, at desk and phone width. Screenshots are left in OUT for people to look at.
#
# usage: html_browser.sh FATHOM OUT [TARGET]     Exit status 77 when there is no Chromium: the check did not run.
set -u
fathom=$1
out=$2
here=$(cd "$(dirname "$0")" && pwd)
target=${3:-$here/../../models/fairy}
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
if [ -z "$browser" ]; then
  echo "SKIPPED: no chromium on this machine (install the package chromium); nothing was checked"
  exit 77
fi
mkdir -p "$out"
out=$(cd "$out" && pwd)
profile=$(mktemp -d)
trap 'rm -rf "$profile"' EXIT
failed=0

browse() {
  what=$1 address=file://$2
  shift 2
  timeout 120 "$browser" --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$profile/$what" \
    --enable-logging=stderr --v=0 --virtual-time-budget=4000 "$@" "$address" >"$out/stdout" 2>"$out/stderr"
  status=$?
  if [ $status -ne 0 ] || grep -q 'CONSOLE' "$out/stderr"; then
    echo "FAILED: $what (status $status)"
    grep 'CONSOLE' "$out/stderr"
    failed=1
  fi
}

page=$out/bench.html
"$fathom" bench "$target" --concurrency 1,2,4 --rounds 2 --input 32 --output 24 --repeats 2 --html "$page" >"$out/bench.txt" || exit 1
nonce=$(grep -o "nonce-[0-9a-f]*" "$page" | head -1 | cut -c7-)
checked=$out/bench_checked.html
{ cat "$page"; printf '<script nonce="%s">\n' "$nonce"; cat "$here/html_browser_check.js"; echo '</script>'; } >"$checked"
phone=$out/bench_phone.html
printf '<!DOCTYPE html><title>phone</title><body style="margin:0"><iframe src="bench_checked.html" width="390" height="5000" style="border:0"></iframe>\n' >"$phone"
browse use "$checked" --window-size=1280,1000 --dump-dom
grep -q 'data-checked="yes"' "$out/stdout" || { echo "FAILED: the check did not pass or did not run"; failed=1; }
browse light "$page" --window-size=1280,4600 --screenshot="$out/bench_light.png" --blink-settings=preferredColorScheme=1
browse dark "$page" --window-size=1280,4600 --screenshot="$out/bench_dark.png" --blink-settings=preferredColorScheme=0
browse phone "$phone" --window-size=500,5000 --screenshot="$out/bench_phone.png"
browse print "$page" --print-to-pdf="$out/bench.pdf" --blink-settings=preferredColorScheme=0
rm -f "$out/stdout" "$out/stderr"
[ $failed -eq 0 ] && echo "passed; screenshots in $out"
exit $failed
