# The second half of ./demo: the in-box model is served, measured under load, profiled, explained, and compared with what
# this machine allows. Sourced by demo, which defines say, begin and the rest; results go to demo-out/.

fathom=build/release/bin/fathom
server_pid= load_pid=
stop_load() {
  [ -n "$load_pid" ] && kill "$load_pid" 2>/dev/null && wait "$load_pid" 2>/dev/null
  load_pid=
}
stop_server() {
  stop_load
  [ -n "$server_pid" ] && kill "$server_pid" 2>/dev/null && wait "$server_pid" 2>/dev/null
  server_pid=
}
trap stop_server EXIT
trap 'stop_server; exit 130' INT TERM

# quiet LOG COMMAND...: runs one step; its output goes to the log, and the last line of that is shown when it fails.
quiet() {
  local log=$1
  shift
  "$@" >"$log" 2>&1 </dev/null && return
  failed
  die "$(tail -n 1 "$log" | cut -c1-300) (log: $log)"
}

start_server() {
  begin "serving models/fairy"
  "$fathom" serve models/fairy --port 0 --profile-dir demo-out >demo-out/server.log 2>&1 </dev/null &
  server_pid=$!
  url=
  for _ in $(seq 100); do
    url=$(grep -m 1 -o 'http://127\.0\.0\.1:[0-9]*' demo-out/server.log)
    [ -n "$url" ] && break
    kill -0 "$server_pid" 2>/dev/null || { failed; die "the server did not start: $(tail -n 1 demo-out/server.log)"; }
    sleep 0.1
  done
  [ -n "$url" ] || { failed; die "the server did not start within 10 s (log: demo-out/server.log)"; }
  done_ok "$url"
}

# post PATH BODY: sends a request to the server and prints the answer, with nothing but bash.
post() {
  local port=${url##*:} line
  exec 9<>"/dev/tcp/127.0.0.1/$port" || return 1
  printf 'POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' \
    "$1" "${#2}" "$2" >&9
  while IFS= read -r -t 30 line; do printf '%s\n' "$line"; done <&9
  exec 9>&- 9<&-
}

# A steady stretch of the server at 4 open requests: 64 steps of it as a trace. The load goes on until the trace is there,
# however fast the machine is.
profile_server() {
  rm -f demo-out/fathom-*.trace.json.gz
  begin "profiling 64 steps under load"
  "$fathom" bench "$url" --concurrency 4 --requests 4000 --input 64 --output 64 >demo-out/profiled.log 2>&1 </dev/null &
  load_pid=$!
  local trace
  sleep 0.7  # past the warm-up
  post /start_profile '{"num_steps": 64}' >demo-out/start_profile.log || { failed; die "the server does not answer (log: demo-out/server.log)"; }
  for _ in $(seq 600); do
    trace=$(find demo-out -name 'fathom-*.trace.json.gz' -print -quit)
    [ -n "$trace" ] && break
    kill -0 "$load_pid" 2>/dev/null || { failed; die "the load failed: $(tail -n 1 demo-out/profiled.log)"; }
    sleep 0.1
  done
  stop_load
  [ -n "$trace" ] || { failed; die "the server wrote no profile (log: demo-out/server.log)"; }
  mv "$trace" demo-out/profile.json.gz
  done_ok
}

# This machine as an entry for fathom plan: bandwidth and rate as the lab just measured them.
describe_machine() {
  begin "measuring this machine"
  quiet demo-out/machine.log "$fathom" kernels --op embed --time-only --seconds 0.1 --json
  local copy rate memory
  copy=$(sed -n 's/.*"copy_gb_per_s": \([0-9.]*\),*$/\1/p' demo-out/machine.log | head -n 1)
  rate=$(sed -n 's/.*"fp32_tflop_per_s": \([0-9.]*\),*$/\1/p' demo-out/machine.log | head -n 1)
  memory=$(awk '/^MemTotal:/ {print int($2 / 1024)}' /proc/meminfo)
  [ -n "$copy" ] && [ -n "$rate" ] || { failed; die "fathom kernels gave no rates (log: demo-out/machine.log)"; }
  printf '{"gpus": [{"name": "this machine", "compute_capability": 0, "sms": %d, "memory": %d, "bandwidth": %s, "bf16": %s, "fp8": 0, "fp4": 0,
  "link": {"name": "none", "gbs": 1, "allreduce_us": 1}}]}\n' "$(nproc)" "$memory" "$copy" "$rate" >demo-out/machine.json
  done_ok "$(printf 'copy %.1f GB/s, fp32 %.3f TFLOP/s' "$copy" "$rate")"
}

run_loop() {
  start_server
  begin "load of 1, 4 and 16 requests"
  quiet demo-out/bench.txt "$fathom" bench "$url" --concurrency 1,4,16 --rounds 3 --input 64 --output 64 \
    --json demo-out/bench.json --md demo-out/bench.md --html demo-out/bench.html
  done_ok
  profile_server
  stop_server
  begin "reading the profile"
  rm -f demo-out/PROFILE_FINDINGS.md
  quiet demo-out/trace.txt "$fathom" trace demo-out/profile.json.gz --html demo-out/report.html --md demo-out/PROFILE_FINDINGS.md
  cat demo-out/bench.md >>demo-out/PROFILE_FINDINGS.md
  done_ok
  describe_machine
  begin "what the machine allows"
  quiet demo-out/plan.txt "$fathom" plan models/fairy --gpus demo-out/machine.json --gpu "this machine" --batch 1,4,16 --context 128 \
    --measured demo-out/bench.json
  # The profiled load had 4 open requests with 64 tokens of prompt and up to 64 of output.
  rm -f demo-out/doctor.md
  quiet demo-out/doctor.txt "$fathom" doctor models/fairy --quick --trace demo-out/profile.json.gz --gpus demo-out/machine.json \
    --gpu "this machine" --batch 4 --context 96 --md demo-out/doctor.md
  sed -n '/^### Verdict/,$p' demo-out/doctor.md >>demo-out/PROFILE_FINDINGS.md
  done_ok

  say ""
  say "Load test: $(sed -n 2p demo-out/bench.txt)"
  sed -n '4,/^Step time\|^No fit/p' demo-out/bench.txt
  say ""
  say "Bound of this machine (bytes over copy bandwidth, operations over fp32 rate), and how much of it was reached"
  sed -n '/^ batch/,/^$/p' demo-out/plan.txt
  say "A step of the profile (4 open requests) beside that bound"
  sed -n '/^  part /,/^  all /p' demo-out/doctor.txt
  say ""
  say "The three findings that matter"
  say "1. $(sed -n '/^Verdict on/{n;p;q}' demo-out/doctor.txt)." | fold -s -w 120
  say "2. $(sed -n '1,2p' demo-out/trace.txt | tr '\n' ' ')" | fold -s -w 120
  sed -n '/^Findings/,/^Categories/p' demo-out/trace.txt | awk '/^1\./ {on = 1} /^2\./ {on = 0} on && /^[0-9 ]/' | sed '1s/^1\./3./'
  say ""
  say "Written: demo-out/report.html (open it in a browser), demo-out/bench.html, demo-out/PROFILE_FINDINGS.md"
}
