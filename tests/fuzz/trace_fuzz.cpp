// Splitter, parser, assembly and every report together: no input may crash, hang or give invalid UTF-8, and the size of
// the window must not change what is read.
#include <cstdlib>

#include "base/error.h"
#include "base/utf8.h"
#include "trace/analysis.h"
#include "trace/markdown_report.h"
#include "trace/reader.h"
#include "trace/text_report.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fathom::trace;
  static const CategoryRules rules = CategoryRules::built_in();
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    const Trace trace = read_trace_bytes(bytes, "fuzz.json");
    for (size_t i = 1; i < trace.events.size(); ++i)
      require(trace.events[i].duration >= 0 && index(trace.events[i].stream) < trace.streams.size());
    const Analysis analysis = analyse(trace, rules, {1000, 4});
    for (const DeviceSummary& d : analysis.summary.devices) require(d.busy <= d.span() && d.busy >= 0);
    require(fathom::is_valid_utf8(text_report(analysis)));
    require(fathom::is_valid_utf8(markdown_report({analysis}, "2026-11-29")));
    if (!trace.import.partial) {
      const Trace small = read_trace_bytes(bytes, "fuzz.json", {.window_bytes = 700});
      require(small.events.size() == trace.events.size() && small.import.events == trace.import.events);
    }
  } catch (const fathom::Error& e) {
    require(fathom::is_valid_utf8(e.what()));
  }
  return 0;
}
