#include <algorithm>

#include "base/error.h"
#include "trace/format.h"
#include "trace/names.h"
#include "trace/text_report.h"

namespace fathom::trace {

namespace {

/// "; it fills 18 of 132 SMs" where that is a finding.
std::string fills(const Analysis& a, const KernelRow& top) {
  for (const Finding& f : a.diagnosis.findings)
    if (f.id == "few_blocks" && !f.rows.empty() && f.rows.front() == 0) {
      int sms = 0;
      for (const Device& d : a.trace->devices) sms = std::max(sms, d.sm_count);
      return fmt::format("; it fills {} of {} SMs", a.trace->shapes[index(top.shape)].blocks(), sms);
    }
  return "";
}

std::string nothing_to_rank(const Trace& trace) {
  const std::string_view unit = device_word(trace);
  for (const std::string& note : trace.import.notes) {
    if (note.starts_with("no GPU work")) return fmt::format("No{}.", note.substr(2));
    if (note.starts_with("no ") || note.starts_with("the file holds"))
      return fmt::format("No {} work in this trace: {}.", unit, note);
  }
  return fmt::format("No {} work in this trace.", unit);
}

/// Waiting that costs more than the first kernel does is the answer; null when it costs less.
const Finding* waiting(const Analysis& a) {
  const Finding* most = nullptr;
  for (const Finding& f : a.diagnosis.findings)
    if ((f.id == "launch_bound" || f.id == "gaps" || f.id == "between_steps") && (!most || f.ceiling > most->ceiling))
      most = &f;
  return most && a.diagnosis.speedup(most->ceiling) > a.ranking.rows.front().ceiling ? most : nullptr;
}

/// How busy the devices are. A hole that dominates (a pause before the first step) is told apart, because it would
/// swallow the figure; not where waiting is the answer itself.
std::string busy_sentence(const Analysis& a, bool pauses_count) {
  Ns worked_in = 0, left_out = 0;
  for (const DeviceSummary& d : a.summary.devices) {
    Ns windows = 0;
    for (const Window& w : d.windows) windows += w.end - w.start;
    if (pauses_count) windows = d.span();
    worked_in = saturated_sum(worked_in, windows);
    left_out = saturated_sum(left_out, d.span() - windows);
  }
  const double share = worked_in > 0 ? static_cast<double>(a.summary.busy) / static_cast<double>(worked_in) : 1;
  const size_t devices = a.summary.devices.size();
  const std::string_view unit = device_word(*a.trace);
  std::string out = devices == 1 ? fmt::format(" The {} is busy {} of ", unit, percent(share))
                                 : fmt::format(" The {} {}s are busy {} of ", devices, unit, percent(share));
  out += time_text(worked_in);
  if (devices > 1) out += " (their times added)";
  if (left_out > 0) out += fmt::format(", not counting {} of long pauses", time_text(left_out));
  return out + ".";
}

}  // namespace

std::string headline(const Analysis& a) {
  const Trace& trace = *a.trace;
  if (a.ranking.rows.empty()) return nothing_to_rank(trace);
  const std::string_view unit = device_word(trace);
  const KernelRow& top = a.ranking.rows.front();
  std::string out;
  const Finding* const wait = waiting(a);
  if (wait) {
    out = wait->title;
    out +=
        fmt::format("; the most that ending this can give is {}. ", speedup_text(a.diagnosis.speedup(wait->ceiling)));
    if (out.starts_with("the ")) out[0] = 'T';
  }
  out +=
      fmt::format("{} of {} time is one {}: {} ({}, mean {}){}; the most that fixing it can give is {}.",
                  percent(top.share), unit, top.kind == WorkKind::kernel ? work_word(trace) : "kind of copy",
                  fit(brief_name(trace.names.text(top.name)), 80), counted(top.calls, "call"),
                  time_text(static_cast<Ns>(top.mean())), fills(a, top), speedup_text(a.ranking.rows.front().ceiling));
  if (!a.categories.rows.empty()) {
    const CategoryRow& group = a.categories.rows.front();
    const std::string& label = a.categories.categories[group.category].label;
    if (group.category != top.category)
      out += fmt::format(" The largest group ({}) has {}.", label, percent(group.share));
    else if (group.share > top.share + 0.05)
      out += fmt::format(" Its whole group ({}) has {}.", label, percent(group.share));
  }
  return out + busy_sentence(a, wait != nullptr);
}

}  // namespace fathom::trace
