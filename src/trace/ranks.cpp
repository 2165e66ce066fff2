#include "trace/ranks.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "trace/format.h"
#include "trace/markdown_report.h"

namespace fathom::trace {
namespace {

/// The calls of each communication kernel on one device, in order of time.
using Calls = std::map<std::string, std::vector<Ns>, std::less<>>;

struct OneRank {
  RankRow row;
  Calls calls;
};

OneRank gather(const Analysis& a, const DeviceSummary& d) {
  const Trace& t = *a.trace;
  const Device& device = t.devices[index(d.device)];
  OneRank out;
  out.row.rank = device.rank;
  out.row.label = device.rank ? fmt::format("rank {}", *device.rank) : printable(t.path.filename().string(), 40);
  if (!device.rank_label.empty()) out.row.label = printable(device.rank_label, 40);
  if (!device.rank && a.summary.devices.size() > 1)
    out.row.label += fmt::format(" {} {}", device_word(*a.trace), printable(device.id, 20));
  out.row.span = d.span(), out.row.busy = d.busy;
  std::vector<bool> communicates(t.names.size(), false);
  for (const KernelRow& r : a.ranking.rows)
    if (r.kind == WorkKind::kernel && a.categories.categories[r.category].id == "communication")
      communicates[index(r.name)] = true;
  for (const GpuEvent& e : t.events) {
    if (e.kind != WorkKind::kernel || t.device_of(e) != d.device) continue;
    if (!communicates[index(e.name)]) {
      out.row.compute += e.duration;
      continue;
    }
    out.row.communication += e.duration;
    const LaunchShape& s = t.shape(e);
    out.calls[fmt::format("{}|{}|{}", t.name(e), s.group_size, s.elements_in)].push_back(e.duration);
  }
  return out;
}

void match(std::vector<OneRank>& ranks, RankComparison& out) {
  double skew = 0;
  for (const auto& [name, calls] : ranks.front().calls) {
    bool same = true;
    for (const OneRank& r : ranks) {
      const auto found = r.calls.find(name);
      same &= found != r.calls.end() && found->second.size() == calls.size();
    }
    if (!same) {
      ++out.unmatched_names;
      continue;
    }
    for (size_t k = 0; k < calls.size(); ++k) {
      size_t last = 0;
      Ns shortest = calls[k], longest = calls[k];
      for (size_t r = 0; r < ranks.size(); ++r) {
        const Ns d = ranks[r].calls.find(name)->second[k];
        if (d < shortest) shortest = d, last = r;
        longest = std::max(longest, d);
      }
      for (OneRank& r : ranks) r.row.waiting += r.calls.find(name)->second[k] - shortest;
      ++ranks[last].row.last;
      ++out.collectives;
      skew += static_cast<double>(longest - shortest);
    }
  }
  if (out.collectives) out.skew = static_cast<Ns>(skew / static_cast<double>(out.collectives));
}

}  // namespace

double RankComparison::waiting_share() const {
  Ns waiting = 0, span = 0;
  for (const RankRow& r : rows) waiting = saturated_sum(waiting, r.waiting), span = saturated_sum(span, r.span);
  return static_cast<double>(waiting) / static_cast<double>(std::max<Ns>(1, span));
}

RankComparison compare_ranks(const std::vector<Analysis>& analyses) {
  std::vector<OneRank> ranks;
  for (const Analysis& a : analyses)
    for (const DeviceSummary& d : a.summary.devices) ranks.push_back(gather(a, d));
  if (ranks.size() < 2) fail("comparing ranks needs GPU work of at least two ranks; the files have {}", ranks.size());
  std::stable_sort(ranks.begin(), ranks.end(), [](const OneRank& x, const OneRank& y) {
    return x.row.rank.value_or(1 << 30) < y.row.rank.value_or(1 << 30);
  });
  RankComparison out;
  match(ranks, out);
  Ns waiting = 0;
  for (OneRank& r : ranks) {
    waiting = saturated_sum(waiting, r.row.waiting);
    out.rows.push_back(std::move(r.row));
  }
  for (size_t i = 0; i < out.rows.size(); ++i)
    if (out.rows[i].last > out.rows[out.straggler].last) out.straggler = i;
  const RankRow& slow = out.rows[out.straggler];
  const auto n = static_cast<Ns>(out.rows.size());
  if (out.collectives == 0) {
    out.headline =
        "The ranks share no collective that could be matched call by call: only their totals can be compared.";
    return out;
  }
  out.headline =
      fmt::format("Ranks wait {} for each other on average ({} of their span); {} arrives last in {} of {} collectives",
                  time_text(waiting / n), percent(out.waiting_share()), slow.label, slow.last, out.collectives);
  const Ns others = out.rows.size() > 1 ? (waiting - slow.waiting) / (n - 1) : 0;
  out.headline += fmt::format(" and waits {} where the others wait {}. Mean skew of a collective: {}.",
                              time_text(slow.waiting), time_text(others), time_text(out.skew));
  return out;
}

std::string ranks_text(const RankComparison& c, size_t width) {
  width = std::max<size_t>(width, 60);
  std::string out = wrapped(c.headline, width) + "\n";
  size_t label = 8;
  for (const RankRow& r : c.rows) label = std::max(label, text_width(r.label));
  label = std::min(label, width > 75 ? width - 67 : size_t{12});
  out += padded("", label) + padded("span ms", 11, true) + padded("busy ms", 11, true) +
         padded("compute ms", 12, true) + padded("comm. ms", 11, true) + padded("waiting ms", 12, true) +
         padded("last in", 9, true) + "\n";
  for (const RankRow& r : c.rows)
    out += padded(fit(r.label, label), label) + padded(milliseconds(r.span), 11, true) +
           padded(milliseconds(r.busy), 11, true) + padded(milliseconds(r.compute), 12, true) +
           padded(milliseconds(r.communication), 11, true) + padded(milliseconds(r.waiting), 12, true) +
           padded(fmt::format("{}", r.last), 9, true) + "\n";
  if (c.unmatched_names)
    out += wrapped(fmt::format("{} called a different number of times on different ranks and not matched.",
                               counted(static_cast<int64_t>(c.unmatched_names), "communication kernel is",
                                       "communication kernels are")),
                   width);
  return out;
}

std::string ranks_markdown(const RankComparison& c) {
  std::string out = "\n### Ranks\n\n" + markdown_text(c.headline) +
                    "\n\n| rank | span ms | busy ms | compute ms | communication ms | waiting ms | last in "
                    "|\n|---|---:|---:|---:|---:|---:|---:|\n";
  for (const RankRow& r : c.rows)
    out += fmt::format("| {} | {} | {} | {} | {} | {} | {} |\n", markdown_text(r.label), milliseconds(r.span),
                       milliseconds(r.busy), milliseconds(r.compute), milliseconds(r.communication),
                       milliseconds(r.waiting), r.last);
  return out;
}

}  // namespace fathom::trace
