#include "trace/diff.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "trace/format.h"
#include "trace/markdown_report.h"
#include "trace/names.h"

namespace fathom::trace {
namespace {

std::string key(const Trace& t, const KernelRow& r) {
  return std::string(1, static_cast<char>('0' + static_cast<int>(r.kind))) + std::string(t.names.text(r.name));
}

class Comparer {
 public:
  Comparer(const Analysis& before, const Analysis& after) : a_(before), b_(after) {}

  TraceDiff run() {
    const size_t steps_a = a_.steps.steps.size(), steps_b = b_.steps.steps.size();
    out_.per_step = steps_a > 0 && steps_b > 0 && steps_a != steps_b;
    if (out_.per_step) {
      out_.scale_before = 1.0 / static_cast<double>(steps_a);
      out_.scale_after = 1.0 / static_cast<double>(steps_b);
    }
    measures();
    rows();
    categories();
    headline();
    return std::move(out_);
  }

 private:
  Ns old_time(Ns t) const { return std::llround(static_cast<double>(t) * out_.scale_before); }
  Ns new_time(Ns t) const { return std::llround(static_cast<double>(t) * out_.scale_after); }
  void measure(const char* name, Ns before, Ns after) {
    out_.measures.push_back({name, old_time(before), new_time(after)});
  }

  void measures() {
    if (!a_.steps.steps.empty() && !b_.steps.steps.empty())
      out_.measures.push_back({"step, median", a_.steps.median, b_.steps.median});
    measure("span", a_.summary.span, b_.summary.span);
    measure("busy (union)", a_.summary.busy, b_.summary.busy);
    measure("total (sum)", a_.summary.total, b_.summary.total);
    measure("idle", a_.summary.span - a_.summary.busy, b_.summary.span - b_.summary.busy);
  }

  DiffRow row(const KernelRow* x, const KernelRow* y, Change change) const {
    DiffRow r;
    r.change = change;
    if (x) {
      r.old_name = r.name = a_.trace->names.text(x->name);
      r.kind = x->kind, r.category = a_.categories.categories[x->category].label;
      r.before = old_time(x->total), r.calls_before = x->calls, r.share_before = x->share;
    }
    if (y) {
      r.name = b_.trace->names.text(y->name);
      r.kind = y->kind, r.category = b_.categories.categories[y->category].label;
      r.after = new_time(y->total), r.calls_after = y->calls, r.share_after = y->share;
    }
    return r;
  }

  void rows() {
    std::map<std::string, const KernelRow*> old;
    std::vector<const KernelRow*> unmatched;
    for (const KernelRow& r : a_.ranking.rows) old.emplace(key(*a_.trace, r), &r);
    for (const KernelRow& r : b_.ranking.rows) {
      const auto found = old.find(key(*b_.trace, r));
      if (found == old.end()) {
        unmatched.push_back(&r);
        continue;
      }
      out_.rows.push_back(row(found->second, &r, Change::both));
      old.erase(found);
    }
    // What is left is renamed when the name without template arguments agrees: largest with largest.
    std::map<std::string, std::vector<const KernelRow*>> by_short;
    for (const KernelRow& r : a_.ranking.rows)
      if (old.contains(key(*a_.trace, r)))
        by_short[std::string(1, static_cast<char>('0' + static_cast<int>(r.kind))) +
                 short_name(a_.trace->names.text(r.name))]
            .push_back(&r);
    for (const KernelRow* r : unmatched) {
      auto& candidates = by_short[std::string(1, static_cast<char>('0' + static_cast<int>(r->kind))) +
                                  short_name(b_.trace->names.text(r->name))];
      if (candidates.empty()) {
        out_.rows.push_back(row(nullptr, r, Change::added));
        continue;
      }
      out_.rows.push_back(row(candidates.front(), r, Change::renamed));
      old.erase(key(*a_.trace, *candidates.front()));
      candidates.erase(candidates.begin());
    }
    for (const auto& [name, r] : old) out_.rows.push_back(row(r, nullptr, Change::gone));
    sort(out_.rows);
  }

  static void sort(std::vector<DiffRow>& rows) {
    std::stable_sort(rows.begin(), rows.end(), [](const DiffRow& x, const DiffRow& y) {
      const Ns dx = std::abs(x.delta()), dy = std::abs(y.delta());
      return dx != dy ? dx > dy : x.name < y.name;
    });
  }

  void categories() {
    std::map<std::string, DiffRow> all;
    for (const CategoryRow& r : a_.categories.rows) {
      DiffRow& d = all[a_.categories.categories[r.category].label];
      d.before = old_time(r.total), d.calls_before = r.calls, d.share_before = r.share;
    }
    for (const CategoryRow& r : b_.categories.rows) {
      DiffRow& d = all[b_.categories.categories[r.category].label];
      d.after = new_time(r.total), d.calls_after = r.calls, d.share_after = r.share;
    }
    for (auto& [label, d] : all) {
      d.name = d.category = label;
      out_.categories.push_back(d);
    }
    sort(out_.categories);
  }

  void headline() {
    const Measure& m = out_.measures.front();
    const double ratio = m.after > 0 ? static_cast<double>(m.before) / static_cast<double>(m.after) : 1;
    out_.headline =
        fmt::format("{} {}: {} -> {} ({}).", m.name == "span" ? "The span" : "The median step",
                    m.after < m.before   ? "falls"
                    : m.after > m.before ? "rises"
                                         : "stays",
                    time_text(m.before), time_text(m.after),
                    ratio >= 1 ? fmt::format("{:.2f}x faster", ratio) : fmt::format("{:.2f}x slower", 1 / ratio));
    const DiffRow *saved = nullptr, *grown = nullptr;
    for (const DiffRow& r : out_.rows) {
      if (r.delta() < 0 && !saved) saved = &r;
      // What is new replaces something; only what was there before can have become the bottleneck.
      if (r.delta() > 0 && r.change == Change::both && !grown) grown = &r;
    }
    const Measure& idle = out_.measures.back();
    const Ns idle_change = idle.after - idle.before;
    const auto name = [](const DiffRow& r) { return fit(short_name(r.name), 50); };
    if (saved) out_.headline += fmt::format(" {} saves {}", name(*saved), time_text(-saved->delta()));
    if (saved && grown && grown->delta() * 10 > -saved->delta())
      out_.headline += fmt::format(
          ", but {} grows by {}{}", name(*grown), time_text(grown->delta()),
          grown->category == "Communication" ? ": saved work turned into waiting" : ": the bottleneck moved");
    if (saved) out_.headline += ".";
    if (std::abs(idle_change) * 5 > std::abs(m.after - m.before) && idle_change != 0)
      out_.headline +=
          fmt::format(" Idle time {} by {}.", idle_change < 0 ? "falls" : "rises", time_text(std::abs(idle_change)));
  }

  const Analysis& a_;
  const Analysis& b_;
  TraceDiff out_;
};

std::string change_text(const DiffRow& r) {
  switch (r.change) {
    case Change::added:
      return "new";
    case Change::gone:
      return "gone";
    case Change::renamed:
      return "renamed";
    case Change::both:
      break;
  }
  return r.before > 0 ? fmt::format("{:+.1f} %", 100.0 * static_cast<double>(r.delta()) / static_cast<double>(r.before))
                      : "";
}

std::string signed_ms(Ns t) {
  return fmt::format("{:+.3f}", static_cast<double>(t) / 1e6);
}
std::string points(const DiffRow& r) {
  return fmt::format("{:+.1f}", (r.share_after - r.share_before) * 100);
}

}  // namespace

TraceDiff compare(const Analysis& before, const Analysis& after) {
  return Comparer(before, after).run();
}

std::string diff_text(const TraceDiff& d, const Analysis& before, const Analysis& after, size_t width, size_t top) {
  width = std::max<size_t>(width, 60);
  std::string out = wrapped(d.headline, width);
  out += wrapped(fmt::format("before: {}, after: {}{}", printable(before.trace->path.filename().string(), 100),
                             printable(after.trace->path.filename().string(), 100),
                             d.per_step ? fmt::format("; {} and {} steps, so times of kernels are for one step",
                                                      before.steps.steps.size(), after.steps.steps.size())
                                        : ""),
                 width, "  ");
  out += "\n" + padded("", 16) + padded("before ms", 12, true) + padded("after ms", 12, true) +
         padded("change ms", 12, true) + "\n";
  for (const Measure& m : d.measures)
    out += padded(m.name, 16) + padded(milliseconds(m.before), 12, true) + padded(milliseconds(m.after), 12, true) +
           padded(signed_ms(m.after - m.before), 12, true) + "\n";
  const auto table = [&](const std::vector<DiffRow>& rows, const char* what, size_t limit) {
    const size_t name_width = width > 77 ? width - 61 : 16;
    out += "\n" + padded("before ms", 11, true) + padded("after ms", 11, true) + padded("change ms", 11, true) +
           padded("", 10, true) + padded("share pts", 10, true) + padded("calls", 7, true) + " " + what + "\n";
    std::vector<std::string> names;
    for (size_t i = 0; i < rows.size() && i < limit; ++i)
      names.push_back(rows[i].category == rows[i].name ? rows[i].name : display_name(rows[i].name));
    names = distinct_names(names, name_width);
    for (size_t i = 0; i < names.size(); ++i) {
      const DiffRow& r = rows[i];
      out += padded(milliseconds(r.before), 11, true) + padded(milliseconds(r.after), 11, true) +
             padded(signed_ms(r.delta()), 11, true) + padded(change_text(r), 10, true) + padded(points(r), 10, true) +
             padded(fmt::format("{:+}", r.calls_after - r.calls_before), 7, true) + " " + names[i] + "\n";
    }
    if (rows.size() > limit) out += fmt::format("{} more\n", rows.size() - limit);
  };
  table(d.rows, "kernel", top);
  table(d.categories, "category", SIZE_MAX);
  return out;
}

std::string diff_markdown(const TraceDiff& d, const Analysis& before, const Analysis& after) {
  std::string out = fmt::format("\n### {} against {}\n\n{}\n", markdown_text(before.trace->path.filename().string()),
                                markdown_text(after.trace->path.filename().string()), markdown_text(d.headline));
  out += "\n| | before ms | after ms | change ms |\n|---|---:|---:|---:|\n";
  for (const Measure& m : d.measures)
    out += fmt::format("| {} | {} | {} | {} |\n", m.name, milliseconds(m.before), milliseconds(m.after),
                       signed_ms(m.after - m.before));
  out += "\n| kernel | before ms | after ms | change ms | | share points |\n|---|---:|---:|---:|---:|---:|\n";
  for (size_t i = 0; i < d.rows.size() && i < 25; ++i) {
    const DiffRow& r = d.rows[i];
    out += fmt::format("| {} | {} | {} | {} | {} | {} |\n", markdown_text(fit(display_name(r.name), 100)),
                       milliseconds(r.before), milliseconds(r.after), signed_ms(r.delta()), change_text(r), points(r));
  }
  return out;
}

}  // namespace fathom::trace
