#include "base/error.h"
#include "trace/format.h"
#include "trace/text_report.h"

namespace fathom::trace {

std::string headline(const Analysis& a) {
  const Trace& trace = *a.trace;
  if (a.ranking.rows.empty()) {
    for (const std::string& note : trace.import.notes)
      if (note.starts_with("no ") || note.starts_with("the file holds"))
        return "No GPU work in this trace: " + note + ".";
    return "No GPU work in this trace.";
  }
  const KernelRow& top = a.ranking.rows.front();
  const Category& category = a.categories.categories[top.category];
  std::string out = fmt::format("{} of GPU time is one {}: {} ({} calls, mean {}).", percent(top.share),
                                top.kind == WorkKind::kernel ? "kernel" : "kind of copy",
                                fit(short_name(trace.names.text(top.name)), 70), count_text(top.calls),
                                time_text(static_cast<Ns>(top.mean())));
  if (!a.categories.rows.empty() && a.categories.rows.front().category != top.category) {
    const CategoryRow& row = a.categories.rows.front();
    out += fmt::format(" The largest group is {} with {}.", a.categories.categories[row.category].label,
                       percent(row.share));
  } else if (!a.categories.rows.empty() && a.categories.rows.front().share > top.share + 0.05) {
    out += fmt::format(" {} takes {} in all.", category.label, percent(a.categories.rows.front().share));
  }
  const double busy =
      a.summary.span > 0 ? static_cast<double>(a.summary.busy) / static_cast<double>(a.summary.span) : 1;
  out += fmt::format(" The GPU is busy {} of {}.", percent(busy), time_text(a.summary.span));
  return out;
}

}  // namespace fathom::trace
