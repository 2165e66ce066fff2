#include <algorithm>

#include "base/error.h"
#include "trace/format.h"
#include "trace/names.h"
#include "trace/text_report.h"

namespace fathom::trace {

namespace {

std::string factor(double x) {
  return x >= 100 ? "over 100x" : fmt::format("{:.2f}x", x);
}

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

}  // namespace

std::string headline(const Analysis& a) {
  const Trace& trace = *a.trace;
  const std::string_view unit = device_word(trace);
  if (a.ranking.rows.empty()) {
    for (const std::string& note : trace.import.notes) {
      if (note.starts_with("no GPU work")) return fmt::format("No{}.", note.substr(2));
      if (note.starts_with("no ") || note.starts_with("the file holds"))
        return fmt::format("No {} work in this trace: {}.", unit, note);
    }
    return fmt::format("No {} work in this trace.", unit);
  }
  const KernelRow& top = a.ranking.rows.front();
  const Category& category = a.categories.categories[top.category];
  std::string out =
      fmt::format("{} of {} time is one {}: {} ({}, mean {}){}; the most that fixing it can give is {}.",
                  percent(top.share), unit, top.kind == WorkKind::kernel ? work_word(trace) : "kind of copy",
                  fit(brief_name(trace.names.text(top.name)), 160), counted(top.calls, "call"),
                  time_text(static_cast<Ns>(top.mean())), fills(a, top), factor(a.diagnosis.speedup(top.total)));
  if (!a.categories.rows.empty() && a.categories.rows.front().category != top.category) {
    const CategoryRow& row = a.categories.rows.front();
    out += fmt::format(" The largest group is {} with {}.", a.categories.categories[row.category].label,
                       percent(row.share));
  } else if (!a.categories.rows.empty() && a.categories.rows.front().share > top.share + 0.05) {
    out += fmt::format(" {} takes {} in all.", category.label, percent(a.categories.rows.front().share));
  }
  const double busy =
      a.summary.span > 0 ? static_cast<double>(a.summary.busy) / static_cast<double>(a.summary.span) : 1;
  out += fmt::format(" The {} is busy {} of {}.", unit, percent(busy), time_text(a.summary.span));
  return out;
}

}  // namespace fathom::trace
