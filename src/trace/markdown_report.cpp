#include "trace/markdown_report.h"

#include <ctime>

#include "base/error.h"
#include "base/file.h"
#include "trace/format.h"
#include "trace/names.h"
#include "trace/text_report.h"

namespace fathom::trace {
namespace {

std::string section(const Analysis& a, const std::string& date) {
  const Trace& t = *a.trace;
  std::string out = fmt::format("\n## {}: {}\n\n{}{}\n", date, markdown_text(t.path.filename().string()),
                                t.import.partial ? "**PARTIAL.** " : "", markdown_text(headline(a)));
  if (!a.ranking.rows.empty()) {
    out +=
        "\n| total ms | share | calls | mean us | min us | max us | p95 us | category | name |\n"
        "|---:|---:|---:|---:|---:|---:|---:|---|---|\n";
    for (size_t i = 0; i < a.ranking.rows.size() && i < 25; ++i) {
      const KernelRow& r = a.ranking.rows[i];
      out += fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} | {} |\n", milliseconds(r.total), percent(r.share),
                         r.calls, microseconds(r.mean()), microseconds(static_cast<double>(r.min)),
                         microseconds(static_cast<double>(r.max)), microseconds(static_cast<double>(r.p95)),
                         markdown_text(a.categories.categories[r.category].label),
                         markdown_text(fit(display_name(t.names.text(r.name)), 100)));
    }
    if (a.ranking.rows.size() > 25)
      out += fmt::format("\n{} not shown.\n", counted(static_cast<int64_t>(a.ranking.rows.size() - 25),
                                                      "more kernel is", "more kernels are"));
    if (!a.plausible.rows.empty()) {
      out +=
          "\nWithout the calls whose durations cannot be real (clock defects):\n\n"
          "| total ms | share | calls | kernel |\n|---:|---:|---:|---|\n";
      for (size_t i = 0; i < a.plausible.rows.size() && i < 10; ++i) {
        const KernelRow& r = a.plausible.rows[i];
        out += fmt::format("| {} | {} | {} | {} |\n", milliseconds(r.total), percent(r.share), r.calls,
                           markdown_text(fit(display_name(t.names.text(r.name)), 100)));
      }
    }
    if (!a.diagnosis.findings.empty()) out += "\n";
    for (size_t i = 0; i < a.diagnosis.findings.size(); ++i) {
      const Finding& f = a.diagnosis.findings[i];
      out += fmt::format("{}. **{}.** ", i + 1, markdown_text(f.title));
      if (f.ceiling > 0)
        out += fmt::format("Gain about {} ({}), at most {} ({}). ", time_text(f.gain),
                           speedup_text(a.diagnosis.speedup(f.gain)), time_text(f.ceiling),
                           speedup_text(a.diagnosis.speedup(f.ceiling)));
      out += markdown_text(f.evidence) + ". Remedy: " + markdown_text(f.advice) + ".\n";
    }
    if (!a.steps.steps.empty()) out += "\n" + markdown_text(steps_sentence(a.steps)) + "\n";
    out += "\n| category | total ms | share | calls |\n|---|---:|---:|---:|\n";
    for (const CategoryRow& r : a.categories.rows)
      out += fmt::format("| {} | {} | {} | {} |\n", markdown_text(a.categories.categories[r.category].label),
                         milliseconds(r.total), percent(r.share), r.calls);
    out +=
        "\n| device | total ms (sum) | busy ms (union) | span ms | idle ms | largest hole "
        "|\n|---|---:|---:|---:|---:|---:|\n";
    for (const DeviceSummary& d : a.summary.devices) {
      const Device& device = t.devices[index(d.device)];
      out += fmt::format("| {} | {} | {} | {} | {} | {} |\n",
                         markdown_text(fmt::format("{} {} {}", device_word(t), device.id, device.rank_label)),
                         milliseconds(d.total), milliseconds(d.busy), milliseconds(d.span()), milliseconds(d.idle()),
                         d.holes.empty() ? "none" : time_text(d.holes.front().duration));
    }
  }
  const auto sentences = import_sentences(t);
  if (!sentences.empty()) out += "\n";
  for (const std::string& s : sentences) out += "- " + markdown_text(s) + "\n";
  return out;
}

}  // namespace

std::string markdown_text(std::string_view text) {
  std::string out;
  for (const char c : printable(text, 2000)) {
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else if (std::string_view("\\`*_{}[]()#+-.!|~=").find(c) != std::string_view::npos && c != '.' && c != '-' &&
             c != '(' && c != ')')
      out += fmt::format("\\{}", c);
    else
      out += c;
  }
  return out;
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d", &parts);
  return text;
}

std::string markdown_report(const std::vector<Analysis>& analyses, const std::string& date) {
  std::string out;
  for (const Analysis& a : analyses) out += section(a, date);
  return out;
}

void append_markdown(const std::filesystem::path& path, std::string_view section) {
  std::error_code ignored;
  std::string text = std::filesystem::exists(path, ignored) ? read_file(path) : "# Findings from GPU traces\n";
  if (!text.empty() && text.back() != '\n') text += '\n';
  text += section;
  OutputFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace fathom::trace
