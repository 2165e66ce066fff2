// Writes what a Recorder collected as a Chrome trace, which chrome://tracing, Perfetto and `fathom trace` open.
//
// Every span is one complete event ("ph": "X") with ts and dur in microseconds (three decimals: nanoseconds), counted
// from the moment the recorder was made. Ops carry args {step, shape, bytes, flops, GB/s, GFLOP/s}; steps are named
// "step 7: prefill 12 tokens + decode B=3". Threads and the process are named by metadata events. Work of a GPU has the
// GPU's number as its pid and in args.device.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/recorder.h"

namespace fathom::profile {

/// What the trace says of its origin, as strings in "otherData": model, version, threads ...
using TraceNotes = std::vector<std::pair<std::string, std::string>>;

/// Writes the trace to `path`, compressed when the name ends in .gz. Throws Error with the path when it cannot be
/// written (folder missing, disk full); then no partial file stays and an older file keeps its content.
void write_chrome_trace(const Recorder& recorder, const std::filesystem::path& path, const TraceNotes& notes = {});

/// The name of a step in the trace: "prefill 12 tokens", "decode B=1", "prefill 12 tokens + decode B=3".
std::string step_label(int64_t prefill_tokens, int64_t decode_sequences);
/// The name of a stretch of steps that were left out: "4 steps not recorded". Times in the trace are those of the
/// clock; whoever adds up idle time leaves these stretches out, as `fathom trace` does.
std::string skipped_label(int64_t steps);

}  // namespace fathom::profile
