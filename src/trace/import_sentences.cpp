#include "base/error.h"
#include "trace/format.h"
#include "trace/text_report.h"

namespace fathom::trace {

namespace {

std::string described(const Damage& d) {
  return d.context.empty() ? d.what : fmt::format("{} near \"{}\"", d.what, fit(d.context, 60));
}

}  // namespace

std::vector<std::string> import_sentences(const Trace& trace) {
  const ImportReport& r = trace.import;
  std::vector<std::string> out;
  if (r.partial) {
    out.push_back(
        fmt::format("PARTIAL: the file is damaged or cut at byte {}{}; every whole event was kept ({} in all, {} "
                    "damaged place{})",
                    r.partial_offset, r.damages.empty() ? "" : ": " + described(r.damages.front()),
                    count_text(static_cast<int64_t>(r.events)), r.damage_count, r.damage_count == 1 ? "" : "s"));
    for (size_t i = 1; i < r.damages.size() && i < 4; ++i)
      out.push_back(fmt::format("also at byte {}: {}", r.damages[i].offset, described(r.damages[i])));
  }
  const auto count = [&](uint64_t n, const char* one, const char* many) {
    if (n) out.push_back(fmt::format("{} {}", count_text(static_cast<int64_t>(n)), n == 1 ? one : many));
  };
  count(r.non_finite, "number is not finite (inf or NaN) and counts as absent",
        "numbers are not finite (inf or NaN) and count as absent");
  count(r.bad_escapes, "invalid escape in a string", "invalid escapes in strings");
  count(r.bad_utf8, "name with invalid UTF-8 was repaired", "names with invalid UTF-8 were repaired");
  count(r.control_characters, "name holds raw control characters", "names hold raw control characters");
  count(r.zero_time, "piece of GPU work at time 0 was left out of everything",
        "pieces of GPU work at time 0 were left out of everything");
  count(r.zero_duration, "piece of GPU work has no duration: it counts as a call only",
        "pieces of GPU work have no duration: they count as calls only");
  count(r.negative_duration, "piece of GPU work with an impossible duration was left out",
        "pieces of GPU work with impossible durations were left out");
  count(r.no_duration, "piece of GPU work without a duration was left out",
        "pieces of GPU work without a duration were left out");
  count(r.no_time, "event without a time stamp was left out", "events without a time stamp were left out");
  count(r.open_begins, "unclosed begin event", "unclosed begin events");
  count(r.stray_ends, "end event without a begin", "end events without a begin");
  count(r.unknown_phases, "event of an unknown phase was skipped", "events of unknown phases were skipped");
  if (!trace.events.empty()) {
    count(r.launches_without_work,
          "kernel launch has no kernel in the trace: it was dropped or lies outside the recording",
          "kernel launches have no kernel in the trace: they were dropped or lie outside the recording");
    count(r.work_without_launch, "piece of GPU work has no launch in the trace",
          "pieces of GPU work have no launch in the trace");
  }
  for (const std::string& note : r.notes) out.push_back(note);
  return out;
}

}  // namespace fathom::trace
