#include "profile/summary.h"

#include <fmt/format.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/progress.h"

namespace fathom::profile {
namespace {

/// Spans of one thread, outer before inner. Spans of one thread nest, because they are scopes.
bool outer_first(const SpanRecord& a, const SpanRecord& b) {
  if (a.thread != b.thread) return a.thread < b.thread;
  if (a.start_ns != b.start_ns) return a.start_ns < b.start_ns;
  return a.end_ns > b.end_ns;
}

struct Open {  // a span whose children are still coming
  const SpanRecord* span;
  int64_t inside_ns;
};

constexpr std::string_view kGlue = "(between ops)", kGaps = "(gaps between kernels)";

using Key = std::tuple<std::string_view, std::string_view, int32_t>;  // name, category, GPU

void close(std::map<Key, OpTotal>& rows, const Open& open) {
  const SpanRecord& span = *open.span;
  const bool step = std::string_view(span.category) == kStepCategory;
  OpTotal& row = rows[{step ? kGlue : span.name, span.category, -1}];
  const int64_t duration = span.end_ns - span.start_ns;
  ++row.calls;
  row.total_ns += duration;
  row.self_ns += std::max<int64_t>(0, duration - open.inside_ns);
  row.bytes += span.bytes;
  row.flops += span.flops;
}

}  // namespace

/// Rows of a GPU: time that no earlier kernel covers, since kernels overlap; what lies between the first and the last
/// of a step without any is the step's own.
void add_device_rows(const Recorder& recorder, std::map<Key, OpTotal>& rows) {
  std::vector<const DeviceSpan*> spans;
  for (const DeviceSpan& s : recorder.device_spans())
    if (std::string_view(s.category) != kRuntimeCategory) spans.push_back(&s);
  std::sort(spans.begin(), spans.end(), [](const auto* a, const auto* b) {
    return std::pair(a->device, a->start_ns) < std::pair(b->device, b->start_ns);
  });
  int64_t covered = 0;
  int32_t step = -1, device = -1;
  for (const DeviceSpan* s : spans) {
    if (s->device != device) covered = 0, step = -1, device = s->device;
    const int64_t start = std::max(covered, s->start_ns);
    if (s->step == step && step > 0 && s->start_ns > covered) {
      OpTotal& gap = rows[{kGaps, kKernelCategory, device}];
      ++gap.calls, gap.self_ns += s->start_ns - covered, gap.total_ns += s->start_ns - covered;
    }
    OpTotal& row = rows[{s->name, s->category, device}];
    ++row.calls;
    row.total_ns += s->end_ns - s->start_ns;
    row.self_ns += std::max<int64_t>(0, s->end_ns - start);
    row.bytes += s->bytes, row.flops += s->flops;
    covered = std::max(covered, s->end_ns), step = s->step;
  }
}

Summary summarize(const Recorder& recorder) {
  std::vector<SpanRecord> spans;
  spans.reserve(recorder.stored());
  recorder.for_each([&](const SpanRecord& span) {
    if (std::string_view(span.category) != kSkippedCategory) spans.push_back(span);
  });
  std::sort(spans.begin(), spans.end(), outer_first);

  Summary out;
  out.span_count = static_cast<int64_t>(spans.size());
  out.dropped = static_cast<int64_t>(recorder.dropped());
  out.cost = recorder.cost();
  std::map<Key, OpTotal> rows;
  std::vector<Open> open;
  for (const SpanRecord& span : spans) {
    if (std::string_view(span.category) == kStepCategory) ++out.steps;
    while (!open.empty() && (open.back().span->thread != span.thread || open.back().span->end_ns <= span.start_ns)) {
      close(rows, open.back());
      open.pop_back();
    }
    if (!open.empty()) open.back().inside_ns += span.end_ns - span.start_ns;
    open.push_back({&span, 0});
  }
  for (; !open.empty(); open.pop_back()) close(rows, open.back());
  if (!recorder.device_spans().empty()) {  // the host waits most of the time: only the GPU's own rows
    rows.clear();
    add_device_rows(recorder, rows);
  }

  for (auto& [key, row] : rows) {
    row.name = std::get<0>(key), row.category = std::get<1>(key), row.device = std::get<2>(key);
    out.covered_ns += row.self_ns;
    out.rows.push_back(std::move(row));
  }
  std::stable_sort(out.rows.begin(), out.rows.end(),
                   [](const OpTotal& a, const OpTotal& b) { return a.self_ns > b.self_ns; });
  return out;
}

namespace {

std::string duration_text(double ns) {
  if (ns < 999.5) return fmt::format("{:.0f} ns", ns);
  if (ns < 999.5e3) return fmt::format("{:.{}f} us", ns / 1e3, ns < 1e4 ? 2 : 1);
  if (ns < 999.5e6) return fmt::format("{:.{}f} ms", ns / 1e6, ns < 1e7 ? 2 : 1);
  return fmt::format("{:.2f} s", ns / 1e9);
}

struct Column {
  std::string title;
  int drop;  // columns leave in this order when the terminal is narrow; 0 stays
  std::vector<std::string> cells;

  size_t width() const {
    size_t w = title.size();
    for (const auto& cell : cells) w = std::max(w, cell.size());
    return w;
  }
};

/// The rows to print: the largest, and the rest as one.
std::vector<OpTotal> visible_rows(const Summary& summary, size_t max_rows) {
  max_rows = std::max<size_t>(2, max_rows);
  std::vector<OpTotal> rows = summary.rows;
  if (rows.size() <= max_rows) return rows;
  OpTotal rest;
  rest.name = fmt::format("{} others", rows.size() - max_rows + 1);
  for (size_t i = max_rows - 1; i < rows.size(); ++i) {
    rest.calls += rows[i].calls;
    rest.self_ns += rows[i].self_ns;
    rest.total_ns += rows[i].total_ns;
  }
  rows.resize(max_rows - 1);
  rows.push_back(rest);
  return rows;
}

std::vector<Column> make_columns(const std::vector<OpTotal>& rows, int64_t covered_ns) {
  std::vector<Column> columns = {{"op", 0, {}},   {"time", 0, {}},  {"share", 0, {}}, {"calls", 4, {}},
                                 {"mean", 3, {}}, {"bytes", 1, {}}, {"GB/s", 5, {}},  {"GFLOP/s", 2, {}}};
  if (std::any_of(rows.begin(), rows.end(), [](const OpTotal& row) { return row.device > 0; })) {
    columns.insert(columns.begin() + 1, {"GPU", 0, {}});
    for (const OpTotal& row : rows) columns[1].cells.push_back(row.device < 0 ? "" : fmt::format("{}", row.device));
  }
  const size_t at = columns.size() - 8;  // of the first column, which the others come behind
  const double whole = static_cast<double>(std::max<int64_t>(1, covered_ns));
  for (const OpTotal& row : rows) {
    const auto self = static_cast<double>(row.self_ns);
    columns[0].cells.push_back(row.name);
    columns[at + 1].cells.push_back(duration_text(self));
    columns[at + 2].cells.push_back(fmt::format("{:.1f} %", 100 * self / whole));
    columns[at + 3].cells.push_back(fmt::format("{}", row.calls));
    columns[at + 4].cells.push_back(duration_text(self / static_cast<double>(std::max<int64_t>(1, row.calls))));
    columns[at + 5].cells.push_back(row.bytes ? human_bytes(static_cast<double>(row.bytes)) : "");
    columns[at + 6].cells.push_back(row.bytes ? fmt::format("{:.2f}", row.gigabytes_per_second()) : "");
    columns[at + 7].cells.push_back(row.flops ? fmt::format("{:.2f}", row.gigaflops_per_second()) : "");
  }
  return columns;
}

void fit(std::vector<Column>& columns, size_t width) {
  const auto needed = [&] {
    size_t sum = 2 * (columns.size() - 1);
    for (const auto& column : columns) sum += column.width();
    return sum;
  };
  std::erase_if(columns, [](const Column& c) {  // nobody gave bytes, or FLOPs
    return c.drop && std::all_of(c.cells.begin(), c.cells.end(), [](const auto& cell) { return cell.empty(); });
  });
  for (int drop = 1; drop <= 5 && needed() > width; ++drop)
    std::erase_if(columns, [&](const Column& c) { return c.drop == drop; });
  if (needed() > width) {
    const size_t other = needed() - columns[0].width();
    const size_t room = width > other + 8 ? width - other : 8;
    for (auto& cell : columns[0].cells)
      if (cell.size() > room) cell = cell.substr(0, room - 1) + "~";
  }
}

}  // namespace

std::string format_table(const Summary& summary, int width, size_t max_rows) {
  std::vector<Column> columns = make_columns(visible_rows(summary, max_rows), summary.covered_ns);
  fit(columns, static_cast<size_t>(std::max(40, width)));

  std::string out;
  const auto line = [&](auto&& text_of) {
    std::string text;
    for (size_t i = 0; i < columns.size(); ++i) {
      const std::string& cell = text_of(columns[i]);
      text +=
          i == 0 ? fmt::format("{:<{}}", cell, columns[i].width()) : fmt::format("  {:>{}}", cell, columns[i].width());
    }
    text.erase(text.find_last_not_of(' ') + 1);
    out += text + "\n";
  };
  line([](const Column& c) -> const std::string& { return c.title; });
  for (size_t row = 0; row < columns[0].cells.size(); ++row)
    line([&](const Column& c) -> const std::string& { return c.cells[row]; });
  if (summary.dropped)
    out += fmt::format("{} more spans did not fit in the profile's memory and are missing above\n", summary.dropped);
  if (const RecordingCost& c = summary.cost; c.steps > c.recorded)
    out += fmt::format("{} of {} steps, recorded so that all take hardly longer{}\n", c.recorded, c.steps,
                       c.seconds > 0 ? fmt::format(": {:.1f} %", 100 * c.share()) : "");
  return out;
}

int terminal_width(int fd) {
  struct winsize size {};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace fathom::profile
