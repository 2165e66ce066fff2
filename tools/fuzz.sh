# Random input for the readers of what others send, through libFuzzer. Sourced by test, after tools/steps.sh.

# Each run counts as one check; the two lanes run beside each other. Name, seconds, and what it is.
fuzz_lanes=("trace:60 gzip:15" "text:15 serve:20 safetensors:20 sse:15")
fuzz_names=(trace gzip text serve safetensors sse)
declare -A fuzz_texts=([trace]="traces: splitter, parser, analysis, reports" [gzip]="gzip files" [text]="texts, chats and model output"
  [serve]="request bodies and streamed answers" [safetensors]="safetensors headers, indices, configurations"
  [sse]="streams of events")

# Whether clang is here and can link a libFuzzer program with the sanitizers.
clang_can_fuzz() {
  local folder result
  command -v clang++ >/dev/null || return 1
  folder=$(mktemp -d) || return 1
  echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' >"$folder/probe.cpp"
  clang++ -fsanitize=fuzzer,address,undefined "$folder/probe.cpp" -o "$folder/probe" >/dev/null 2>&1 &&
    "${fixed[@]}" "$folder/probe" -runs=1 >/dev/null 2>&1
  result=$?
  rm -rf "$folder"
  return "$result"
}

# fuzz_lane FOLDER NAME:SECONDS...: one after the other; the exit status of each goes to FOLDER/found/NAME.status.
fuzz_lane() {
  local folder=$1 run name program seeds
  shift
  for run in "$@"; do
    name=${run%:*}
    program=$(find "$folder" -name "${name}_fuzz" -type f -perm -u+x -print -quit)
    mkdir -p "$folder/corpus/$name"
    seeds=()
    [ -d "tests/fuzz/seeds/$name" ] && seeds+=("tests/fuzz/seeds/$name")
    [ "$name" = trace ] && seeds+=(tests/trace/derived)
    [ -f "tests/fuzz/seeds/$name.dict" ] && seeds+=("-dict=tests/fuzz/seeds/$name.dict")
    "${fixed[@]}" "${program:-false}" -max_total_time="${run#*:}" -max_len=8192 -timeout=20 -rss_limit_mb=3072 \
      -print_final_stats=1 -artifact_prefix="$folder/found/$name-" "$folder/corpus/$name" "${seeds[@]}" \
      >"build/log/fuzz-$name.log" 2>&1 </dev/null
    echo $? >"$folder/found/$name.status"
  done
}

# run_fuzzers FOLDER: with the programs built there.
run_fuzzers() {
  local folder=$1 lane name lanes=() runs
  rm -rf "$folder/found"
  mkdir -p "$folder/found"
  log_file fuzz >/dev/null || exit 1
  begin "random input for 75 seconds"
  for lane in "${fuzz_lanes[@]}"; do
    # shellcheck disable=SC2086  # a lane is a list
    fuzz_lane "$folder" $lane &
    lanes+=($!)
  done
  wait "${lanes[@]}"
  end_step "over"
  for name in "${fuzz_names[@]}"; do
    begin "random input: ${fuzz_texts[$name]}"
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "build/log/fuzz-$name.log")
    if [ "$(cat "$folder/found/$name.status" 2>/dev/null)" = 0 ] && [ "${runs:-0}" -gt 0 ]; then
      pass "$runs inputs"
    else
      fail
      grep -m 3 -E 'ERROR:|SUMMARY:|broken promise|runtime error' "build/log/fuzz-$name.log"
      say "log: $PWD/build/log/fuzz-$name.log; the input is beside it in $folder/found"
    fi
  done
}
