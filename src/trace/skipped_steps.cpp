#include "trace/skipped_steps.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "trace/format.h"

namespace fathom::trace {
namespace {

/// Of "4 steps not recorded"; 0: the text says something else.
int64_t steps_in(std::string_view text) {
  int64_t steps = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), steps);
  if (error != std::errc() || steps <= 0) return 0;
  const std::string_view rest = text.substr(static_cast<size_t>(end - text.data()));
  return rest == " steps not recorded" || rest == " step not recorded" ? steps : 0;
}

struct Cut {
  Ns start = 0, end = 0;
  Ns before = 0;  // time that earlier cuts take out
};

/// Where a time lies when the cuts are gone.
Ns moved(const std::vector<Cut>& cuts, Ns time) {
  const auto behind = std::upper_bound(cuts.begin(), cuts.end(), time, [](Ns t, const Cut& c) { return t < c.start; });
  if (behind == cuts.begin()) return time;
  const Cut& c = *(behind - 1);
  return time <= c.end ? c.start - c.before : time - c.before - (c.end - c.start);
}

}  // namespace

void cut_skipped_steps(Trace& trace) {
  std::vector<Cut> cuts;
  int64_t steps = 0;
  std::erase_if(trace.annotations, [&](const Annotation& a) {
    const int64_t n = a.on_gpu ? 0 : steps_in(trace.names.text(a.name));
    if (n == 0) return false;
    steps = saturated_sum(steps, n);
    cuts.push_back({a.start, a.end()});
    return true;
  });
  if (cuts.empty()) return;
  std::sort(cuts.begin(), cuts.end(), [](const Cut& a, const Cut& b) { return a.start < b.start; });
  Ns all = 0;
  for (size_t i = 0; i < cuts.size(); ++i) {
    if (i > 0) cuts[i].start = std::max(cuts[i].start, cuts[i - 1].end);  // damaged files: no two overlap
    cuts[i].end = std::max(cuts[i].end, cuts[i].start);
    cuts[i].before = all;
    all += cuts[i].end - cuts[i].start;
  }
  const auto move = [&](auto& span) {
    const Ns end = moved(cuts, span.end());
    span.start = moved(cuts, span.start);
    span.duration = end - span.start;
  };
  for (GpuEvent& e : trace.events) move(e);
  for (HostCall& c : trace.calls) move(c);
  for (Annotation& a : trace.annotations) move(a);
  trace.import.notes.push_back(fmt::format(
      "{} were not recorded, so that the profile costs little; their {} are taken out of the time. Recorded "
      "steps are launched slower than others: less time is idle between steps than it seems",
      counted(steps, "step"), time_text(all)));
}

}  // namespace fathom::trace
