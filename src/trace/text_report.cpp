#include "trace/text_report.h"

#include <algorithm>

#include "base/error.h"
#include "base/progress.h"
#include "trace/format.h"
#include "trace/names.h"

namespace fathom::trace {
namespace {

/// One report: the pieces append to `out_`.
class TextWriter {
 public:
  TextWriter(const Analysis& analysis, const TextOptions& options)
      : a_(analysis), trace_(*analysis.trace), width_(std::max<size_t>(options.width, 60)), options_(options) {}

  std::string run() {
    lead();
    if (!a_.ranking.rows.empty()) {
      ranking();
      plausible();
      diagnosis();
      categories();
      steps();
      devices();
    }
    import();
    return std::move(out_);
  }

 private:
  void line(std::string text) {
    while (text.ends_with(' ')) text.pop_back();
    out_ += text + "\n";
  }
  void paragraph(std::string_view text, std::string_view indent = "") { out_ += wrapped(text, width_, indent); }
  std::string strong(const std::string& text) const { return options_.bold ? "\033[1m" + text + "\033[0m" : text; }
  void title(const std::string& text) {
    std::string lines = wrapped(text, width_);
    lines.pop_back();
    out_ += "\n" + strong(lines) + "\n";
  }

  void lead() {
    std::string text = wrapped(headline(a_), width_);
    text.pop_back();
    out_ += strong(text) + "\n";
    std::string facts = printable(trace_.path.filename().string(), 120);
    facts += fmt::format(": {}, {}", producer_name(trace_.producer),
                         counted(static_cast<int64_t>(trace_.import.events), "event"));
    std::string gpu;
    for (const Device& d : trace_.devices)
      if (!d.name.empty()) gpu = d.name + (d.sm_count ? fmt::format(" ({} SMs)", d.sm_count) : "");
    if (!trace_.devices.empty())
      facts += fmt::format(", {}{}", counted(static_cast<int64_t>(trace_.devices.size()), device_word(trace_)),
                           gpu.empty() ? "" : " " + printable(gpu, 80));
    if (trace_.rank)
      facts +=
          fmt::format(", rank {}{}", *trace_.rank, trace_.world_size ? fmt::format(" of {}", *trace_.world_size) : "");
    if (trace_.import.partial) facts += ", PARTIAL";
    paragraph(facts, "  ");
  }

  /// Columns of the ranking; those that the width has no room for are left out.
  struct Column {
    const char* head;
    size_t width, from_width;  // shown when the report is at least `from_width` wide
    std::string (*text)(const KernelRow&);
  };
  static constexpr Column columns[] = {
      {"total ms", 10, 0, [](const KernelRow& r) { return milliseconds(r.total); }},
      {"share", 8, 0, [](const KernelRow& r) { return percent(r.share); }},
      {"calls", 8, 0, [](const KernelRow& r) { return fmt::format("{}", r.calls); }},
      {"mean us", 10, 0, [](const KernelRow& r) { return microseconds(r.mean()); }},
      {"min us", 10, 150, [](const KernelRow& r) { return microseconds(static_cast<double>(r.min)); }},
      {"max us", 10, 80, [](const KernelRow& r) { return microseconds(static_cast<double>(r.max)); }},
      {"p95 us", 10, 90, [](const KernelRow& r) { return microseconds(static_cast<double>(r.p95)); }},
      {"at most", 9, 100, [](const KernelRow& r) { return speedup_text(r.ceiling); }},
  };

  void ranking() {
    const auto& rows = a_.ranking.rows;
    const size_t shown = rows.size() <= options_.top + 1 ? rows.size() : options_.top;
    title(fmt::format("{}s by total time (share of the sum of all {} work, {})",
                      device_word(trace_) == "GPU" ? "Kernel" : "Operation", device_word(trace_),
                      time_text(a_.summary.total)));
    const bool with_category = width_ >= 110;
    size_t used = with_category ? 20 : 1;
    std::string head;
    for (const Column& c : columns) {
      if (width_ < c.from_width) continue;
      head += padded(c.head, c.width, true);
      used += c.width;
    }
    const size_t name_width = width_ - used;
    line(head + (with_category ? "  " + padded("category", 17) : "") + fmt::format(" {}", work_word(trace_)));
    std::vector<std::string> names;
    for (size_t i = 0; i < shown; ++i) names.push_back(display_name(trace_.names.text(rows[i].name)));
    names = distinct_names(names, name_width);
    for (size_t i = 0; i < shown; ++i) {
      std::string text;
      for (const Column& c : columns)
        if (width_ >= c.from_width) text += padded(c.text(rows[i]), c.width, true);
      if (with_category) text += "  " + padded(fit(a_.categories.categories[rows[i].category].label, 17), 17);
      line(text + " " + names[i]);
    }
    if (shown == rows.size()) return;
    KernelRow rest;
    for (size_t i = shown; i < rows.size(); ++i)
      rest.total += rows[i].total, rest.calls += rows[i].calls, rest.share += rows[i].share;
    std::string text = padded(milliseconds(rest.total), 10, true) + padded(percent(rest.share), 8, true) +
                       padded(fmt::format("{}", rest.calls), 8, true);
    text += std::string(width_ - name_width - text.size(), ' ');
    line(text + fit(fmt::format("{} more (--top)", rows.size() - shown), name_width));
  }

  /// The ranking again without durations that cannot be real.
  void plausible() {
    const auto& rows = a_.plausible.rows;
    if (rows.empty()) return;
    int64_t left_out = 0;
    for (const DeviceSummary& d : a_.summary.devices) left_out += static_cast<int64_t>(d.defects.size());
    title(fmt::format("Without {} whose duration cannot be real (clock defects, see the findings)",
                      counted(left_out, "call")));
    line("  total ms   share   calls   mean us  kernel");
    std::vector<std::string> names;
    const size_t shown = std::min(rows.size(), options_.top);
    for (size_t i = 0; i < shown; ++i) names.push_back(display_name(trace_.names.text(rows[i].name)));
    names = distinct_names(names, width_ - 38);
    for (size_t i = 0; i < shown; ++i)
      line(padded(milliseconds(rows[i].total), 10, true) + padded(percent(rows[i].share), 8, true) +
           padded(fmt::format("{}", rows[i].calls), 8, true) + padded(microseconds(rows[i].mean()), 10, true) + "  " +
           names[i]);
    if (shown < rows.size()) line(fmt::format("          and {} more (--top)", rows.size() - shown));
  }

  void categories() {
    title("Categories, and the speed-up if one took no time at all");
    for (size_t i = 0; i < a_.categories.rows.size(); ++i) {
      const CategoryRow& r = a_.categories.rows[i];
      std::string text = padded(fit(a_.categories.categories[r.category].label, 18), 19) +
                         padded(milliseconds(r.total), 10, true) + " ms" + padded(percent(r.share), 8, true) +
                         padded(speedup_text(a_.diagnosis.category_speedup[i]), 11, true);
      if (width_ >= 80) text += padded(fmt::format("{}", r.calls), 8, true) + (r.calls == 1 ? " call " : " calls");
      const size_t room = width_ > text_width(text) + 12 ? std::min<size_t>(width_ - text_width(text) - 2, 40) : 0;
      line(text + "  " + std::string(static_cast<size_t>(r.share * static_cast<double>(room) + 0.5), '#'));
    }
    line(fmt::format("Not matched by any rule (other): {} of {} time", percent(a_.categories.other_share),
                     work_word(trace_)));
  }

  void diagnosis() {
    const Diagnosis& d = a_.diagnosis;
    if (d.findings.empty()) return;
    title(fmt::format("Findings (gains are of the {} that the {} worked or waited inside steps; they overlap)",
                      time_text(d.base), device_word(trace_)));
    for (size_t i = 0; i < d.findings.size(); ++i) {
      const Finding& f = d.findings[i];
      paragraph(fmt::format("{}. {}.", i + 1, f.title), "   ");
      if (f.ceiling > 0)
        paragraph(fmt::format("   Gain about {} ({}), at most {} ({}). {}.", time_text(f.gain),
                              speedup_text(d.speedup(f.gain)), time_text(f.ceiling), speedup_text(d.speedup(f.ceiling)),
                              f.evidence),
                  "   ");
      else
        paragraph("   " + f.evidence + ".", "   ");
      if (!f.advice.empty()) paragraph("   Remedy: " + f.advice + ".", "   ");
    }
    if (d.unknown_launches > 0.005 && device_word(trace_) == "GPU")
      paragraph(fmt::format(
          "Grid and block are not recorded for {} of kernel time: whether those kernels fill the SMs is unknown.",
          percent(d.unknown_launches)));
  }

  void steps() {
    if (a_.steps.steps.empty()) return;
    title("Steps");
    paragraph(steps_sentence(a_.steps));
  }

  std::string device_label(const Device& d) const {
    if (trace_.cpu_work) return fmt::format("CPU, process {}", printable(d.id, 30));
    return fmt::format("{} {}{}", device_word(trace_), printable(d.id, 30),
                       d.rank_label.empty() ? "" : " [" + printable(d.rank_label, 40) + "]");
  }

  std::string event_name(size_t i) const { return fit(brief_name(trace_.name(trace_.events[i])), 60); }

  void devices() {
    title("Devices: total is the sum of durations, busy is the time in which at least one stream worked");
    for (const DeviceSummary& d : a_.summary.devices) {
      const double span = std::max(1.0, static_cast<double>(d.span()));
      paragraph(
          fmt::format("{}: total {}, busy {} of {} ({}), idle {}{}", device_label(trace_.devices[index(d.device)]),
                      time_text(d.total), time_text(d.busy), time_text(d.span()),
                      percent(static_cast<double>(d.busy) / span), time_text(d.idle()),
                      d.total > d.busy ? fmt::format(", overlap of streams {}", time_text(d.total - d.busy)) : ""),
          "    ");
      if (d.windows.size() > 1) {
        for (size_t i = 0; i < d.windows.size() && i < 6; ++i) {
          const Window& w = d.windows[i];
          const double length = std::max(1.0, static_cast<double>(w.end - w.start));
          paragraph(fmt::format("    window {} at +{}: {}, busy {}, {}", i + 1, time_text(w.start - d.first),
                                time_text(w.end - w.start), percent(static_cast<double>(w.busy) / length),
                                counted(w.events, "event")),
                    "        ");
        }
        if (d.windows.size() > 6)
          line(fmt::format("    and {}", counted(static_cast<int64_t>(d.windows.size() - 6), "more window")));
      }
      for (size_t i = 0; i < d.holes.size() && i < 3; ++i) {
        const Hole& h = d.holes[i];
        paragraph(fmt::format("    hole of {} at +{}, between {} and {}", time_text(h.duration),
                              time_text(h.start - d.first), event_name(h.before), event_name(h.after)),
                  "        ");
      }
      for (const StreamSummary& s : d.streams)
        if (s.implausible)
          paragraph(
              fmt::format("    stream {}: {} overrun, by up to {}, by earlier work whose duration is a clock defect",
                          printable(trace_.streams[index(s.stream)].id, 30),
                          counted(s.implausible, "event is", "events are"), time_text(s.implausible_time)),
              "        ");
    }
  }

  void import() {
    const auto sentences = import_sentences(trace_);
    if (sentences.empty()) return;
    title("About the file");
    for (const std::string& s : sentences) paragraph("- " + printable(s, 2000), "  ");
  }

  const Analysis& a_;
  const Trace& trace_;
  size_t width_;
  const TextOptions& options_;
  std::string out_;
};

}  // namespace

std::string text_report(const Analysis& analysis, const TextOptions& options) {
  return TextWriter(analysis, options).run();
}

}  // namespace fathom::trace
