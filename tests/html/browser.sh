# Looks at HTML reports in headless Chromium. Sourced by tests that are called with a folder OUT for screenshots; ends with
# exit status 77 when there is no Chromium: nothing was checked then.

# open_browser OUT: makes the folder. Sets out, failed.
open_browser() {
  browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
  if [ -z "$browser" ]; then
    echo "SKIPPED: no chromium on this machine (install the package chromium); nothing was checked"
    exit 77
  fi
  mkdir -p "$1"
  out=$(cd "$1" && pwd)
  profile=$(mktemp -d)
  trap 'rm -rf "$profile"' EXIT
  failed=0
  run=0
}

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

# look_at NAME CHECK HEIGHT PHONE_HEIGHT: OUT/NAME.html is used by the script CHECK, then shown in light, dark, on a phone
# and on paper.
look_at() {
  page=$out/$1.html
  # A copy with the check appended; the report's own policy lets it run only with the page's nonce.
  nonce=$(grep -o "nonce-[0-9a-f]*" "$page" | head -1 | cut -c7-)
  checked=$out/$1_checked.html
  { cat "$page"; printf '<script nonce="%s">\n' "$nonce"; cat "$2"; echo '</script>'; } >"$checked"
  phone=$out/$1_phone.html
  printf '<!DOCTYPE html><title>phone</title><body style="margin:0"><iframe src="%s" width="390" height="%s" style="border:0"></iframe>\n' \
    "$(basename "$checked")" "$4" >"$phone"
  name=$1 height=$3 phone_height=$4
  browse "$name: use" "$checked" --window-size=1280,1000 --dump-dom
  grep -q 'data-checked="yes"' "$out/stdout" || { echo "FAILED: $name: the check did not pass or did not run"; failed=1; }
  browse "$name: light" "$page" --window-size=1280,"$height" --screenshot="$out/${name}_light.png" --blink-settings=preferredColorScheme=1
  browse "$name: dark" "$page" --window-size=1280,"$height" --screenshot="$out/${name}_dark.png" --blink-settings=preferredColorScheme=0
  browse "$name: phone" "$phone" --window-size=500,"$phone_height" --screenshot="$out/${name}_phone.png"
  browse "$name: print" "$page" --print-to-pdf="$out/${name}.pdf" --blink-settings=preferredColorScheme=0
  for made in "${name}_light.png" "${name}_dark.png" "${name}_phone.png" "${name}.pdf"; do
    [ -s "$out/$made" ] || { echo "FAILED: $name: no $made"; failed=1; }
  done
}

# close_browser: ends the test.
close_browser() {
  rm -f "$out/stdout" "$out/stderr"
  [ $failed -eq 0 ] && echo "passed; screenshots in $out"
  exit $failed
}
