# Shared by demo, test and tools/setup: one line for each step, its time, and one clear line when it fails.
# Sourced from the root of the repository.

me=$(basename "$0")
[ -t 1 ] && terminal=1 || terminal=
step_text=
step_start=0

say() { printf '%s\n' "$*"; }
die() {
  printf '%s: %s\n' "$me" "$*" >&2
  exit 1
}

now() { printf '%s' "${EPOCHREALTIME/[.,]/}"; }  # microseconds

# begin TEXT ... then done_ok [NOTE] or failed
begin() {
  step_text=$*
  step_start=$(now)
  if [ -n "$terminal" ]; then printf '%s ...' "$step_text"; else printf '%s ...\n' "$step_text"; fi
}
seconds() {
  local us=$(($(now) - step_start))
  printf '%d.%d s' $((us / 1000000)) $((us / 100000 % 10))
}
end_step() {
  if [ -n "$terminal" ]; then printf '\r\033[K%s ... %s\n' "$step_text" "$1"; else printf '    %s\n' "$1"; fi
}
done_ok() { end_step "${1-ok} ($(seconds))"; }
failed() { end_step "${1-FAILED} ($(seconds))"; }

# Path of a log below build/log; the folder is made when needed.
log_file() {
  mkdir -p build/log 2>/dev/null && [ -w build/log ] || die "cannot write to $PWD/build/log: check its owner and the disk"
  printf '%s/build/log/%s.log' "$PWD" "$1"
}

# with_progress LOG COMMAND...: appends what the command prints to LOG, shows the last line of it while it runs, and
# returns its exit status.
with_progress() {
  local log=$1 line width
  shift
  if [ -z "$terminal" ]; then
    "$@" >>"$log" 2>&1 </dev/null
    return
  fi
  width=$(($(tput cols 2>/dev/null || echo 80) - ${#step_text} - 6))
  [ "$width" -lt 20 ] && { "$@" >>"$log" 2>&1 </dev/null; return; }
  "$@" 2>&1 </dev/null | tee -a "$log" | while IFS= read -r line; do
    line=${line//[^[:print:]]/}
    printf '\r\033[K%s ... %s' "$step_text" "${line:0:width}"
  done
  return "${PIPESTATUS[0]}"
}

# Compilers to run at once: as many as there are processors, and 1.5 GiB of memory for each.
job_count() {
  local memory
  memory=$(awk '/^MemAvailable:/ {print int($2 / 1572864)}' /proc/meminfo 2>/dev/null)
  local n
  n=$(nproc)
  [ -n "$memory" ] && [ "$memory" -lt "$n" ] && n=$memory
  [ "$n" -lt 1 ] && n=1
  printf '%d' "$n"
}

# build PRESET TARGET...: configures build/PRESET when needed and builds the targets. Prints its own step; returns 1
# after one clear line when it fails. More cmake arguments in the array cmake_arguments.
# build/release, which demo and test share, gets FATHOM_TOOL_FLAGS for a shorter build; the preset itself leaves them out.
cmake_arguments=()
build() {
  local preset=$1 folder=build/$1 log home arguments=("${cmake_arguments[@]}")
  shift
  [ "$preset" != release ] || arguments+=(-DFATHOM_TOOL_FLAGS=-O1)
  log=$(log_file "build-$preset") || exit 1
  : >"$log"
  begin "building ($preset)"
  if [ -f "$folder/CMakeCache.txt" ]; then
    home=$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$folder/CMakeCache.txt")
    [ "$home" -ef . ] && [ "$home" = "$(pwd -P)" ] || rm -rf "$folder"  # the repository was moved: paths in it are stale
  fi
  if [ ! -f "$folder/configured" ] || [ CMakePresets.json -nt "$folder/configured" ] || [ tools/steps.sh -nt "$folder/configured" ]; then
    if ! with_progress "$log" cmake --preset "$preset" "${arguments[@]}"; then
      failed
      build_error "$log" "configuring"
      return 1
    fi
    touch "$folder/configured"
  fi
  # The compiler cache takes precompiled headers only when told that they may differ in what does not matter.
  if ! CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS:-pch_defines,time_macros} NINJA_STATUS='[%f/%t] ' with_progress "$log" cmake --build "$folder" -j "$(job_count)" --target "$@"; then
    failed
    build_error "$log" "building"
    return 1
  fi
  done_ok
}
build_error() {
  local first
  first=$(grep -m 1 -E 'error:|Error[: ]' "$1" || grep -m 1 'FAILED:' "$1")
  first=${first:0:200}
  printf '%s: %s failed: %s (log: %s)\n' "$me" "$2" "${first:-no message}" "$1" >&2
}
