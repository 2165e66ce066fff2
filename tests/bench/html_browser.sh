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
. "$here/../html/browser.sh"
open_browser "$out"

"$fathom" bench "$target" --concurrency 1,2,4 --rounds 2 --input 32 --output 24 --repeats 2 --html "$out/bench.html" >"$out/bench.txt" || exit 1
look_at bench "$here/html_browser_check.js" 4600 5000
close_browser
