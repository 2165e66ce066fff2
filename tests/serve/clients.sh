#!/bin/sh
# Runs `fathom serve` and talks to it with real clients: curl and the openai and anthropic packages from PyPI.
# usage: clients.sh FATHOM MODEL [PYTHON]     exit status 77: a client is missing, what it would have shown is not known
set -u
fathom=$1 model=$2 python=${3:-python3}
command -v curl >/dev/null || { echo "SKIPPED: curl is not installed"; exit 77; }
for package in openai anthropic; do
  "$python" -c "import $package" 2>/dev/null || { echo "SKIPPED: $python has no $package package (pip install $package)"; exit 77; }
done

folder=$(mktemp -d) pid=
stop() { [ -n "$pid" ] && kill -KILL "$pid" 2>/dev/null; rm -rf "$folder"; }
trap stop EXIT
start() {
  : >"$folder/log"  # not the one of the server before
  "$fathom" serve "$model" --port "$1" --log-format json "$2" "$3" 2>>"$folder/log" &
  pid=$!
  for _ in $(seq 100); do
    port=$(sed -n 's/.*"url":"http:\/\/127.0.0.1:\([0-9]*\)".*/\1/p' "$folder/log")
    [ -n "$port" ] && return
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
  done
  echo "FAILED: the server did not start"; cat "$folder/log"; exit 1
}
failed=0
check() {  # NAME EXPECTED ACTUAL
  if [ "$2" = "$3" ]; then echo "ok      $1"; else echo "FAILED  $1: expected $2, got $3"; failed=1; fi
}
status() { curl -s -o "$folder/body" -w '%{http_code}' --max-time 60 "$@"; }
chat='{"messages":[{"role":"user","content":"Tell me a story"}],"max_tokens":10'

start 0 --api-key secret
url=http://127.0.0.1:$port key='authorization: Bearer secret'
check 'no key' 401 "$(status "$url/v1/models")"
check 'a key' 200 "$(status -H "$key" "$url/v1/models")"
check 'whole answer' 200 "$(status -H "$key" "$url/v1/chat/completions" -d "$chat}")"
check 'stream' 200 "$(status -N -H "$key" "$url/v1/chat/completions" -d "$chat,\"stream\":true}")"
check 'stream ends' 1 "$(grep -c 'data: \[DONE\]' "$folder/body")"
check 'broken JSON' 400 "$(status -H "$key" "$url/v1/chat/completions" -d '{"messages":')"
head -c 40000000 /dev/zero | tr '\0' x >"$folder/huge"
check 'huge body' 413 "$(status -H "$key" "$url/v1/chat/completions" --data-binary @"$folder/huge")"
check 'HTTP/1.0' 200 "$(status -0 -H "$key" "$url/v1/chat/completions" -d "$chat,\"stream\":true}")"
check 'metrics' 200 "$(status -H "$key" "$url/metrics")"
check 'health' 200 "$(status "$url/health")"

"$python" "$(dirname "$0")/openai_client.py" "$url" secret || failed=1
"$python" "$(dirname "$0")/responses_client.py" "$url" secret || failed=1
"$python" "$(dirname "$0")/anthropic_client.py" "$url" secret || failed=1

# Killed in the middle of a stream, and started again at once on the same port.
curl -sN -H "$key" "$url/v1/chat/completions" -d "${chat%10}2000,\"ignore_eos\":true,\"stream\":true}" >"$folder/cut" &
sleep 0.5; kill -KILL "$pid"; wait "$pid" 2>/dev/null
start "$port" --api-key secret
check 'after kill -9' 200 "$(status -H "$key" "$url/v1/chat/completions" -d "$chat}")"
# SIGTERM in the middle of a stream: the stream comes to its end.
curl -sN -H "$key" "$url/v1/chat/completions" -d "${chat%10}100,\"ignore_eos\":true,\"stream\":true}" >"$folder/last" &
client=$!
sleep 0.3; kill -TERM "$pid"; wait "$pid"; check 'exit status after SIGTERM' 0 $?
pid=; wait "$client"
check 'the last stream ends' 1 "$(grep -c 'data: \[DONE\]' "$folder/last")"
check 'the last stream is whole' 1 "$(grep -c '"finish_reason":"length"' "$folder/last")"
[ "$failed" = 0 ] && echo "all passed"
exit "$failed"
