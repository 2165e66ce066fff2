// Small traces as text for tests.
#pragma once

#include <fmt/format.h>

#include <span>
#include <string>
#include <vector>

#include "trace/reader.h"

namespace fathom::trace {

/// One complete event. `args` is a JSON object or empty.
inline std::string event_text(const std::string& category, const std::string& name, double ts, double dur,
                              const std::string& args = "", const std::string& pid = "0",
                              const std::string& tid = "7") {
  return fmt::format(R"({{"ph": "X", "cat": "{}", "name": "{}", "pid": {}, "tid": {}, "ts": {:.3f}, "dur": {:.3f}{}}})",
                     category, name, pid, tid, ts, dur, args.empty() ? "" : ", \"args\": " + args);
}

inline std::string kernel_text(const std::string& name, double ts, double dur, const std::string& args = "") {
  return event_text("kernel", name, ts, dur, args);
}

constexpr const char* h200 =
    R"({"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0, "maxThreadsPerMultiprocessor": 2048, )"
    R"("regsPerMultiprocessor": 65536, "warpSize": 32, "sharedMemPerMultiprocessor": 233472, "numSms": 132})";

inline std::string trace_text(const std::vector<std::string>& events, const std::string& head = "") {
  std::string out = fmt::format(R"({{"schemaVersion": 1, "deviceProperties": [{}], {}"traceEvents": [)", h200, head);
  for (size_t i = 0; i < events.size(); ++i) out += (i ? ",\n" : "\n") + events[i];
  return out + "\n], \"traceName\": \"x\"}\n";
}

inline Trace read_text(const std::string& text, const std::string& name = "test.json",
                       const ReadOptions& options = {}) {
  return read_trace_bytes(std::as_bytes(std::span(text)), name, options);
}

}  // namespace fathom::trace
