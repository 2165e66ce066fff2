#include "trace/markdown_report.h"

#include <ctime>

#include "base/error.h"
#include "base/file.h"
#include "trace/format.h"
#include "trace/text_report.h"

namespace fathom::trace {
namespace {

/// Text of a table cell: everything that Markdown or HTML could take for markup is escaped.
std::string cell(std::string_view text) {
  std::string out;
  for (const char c : printable(text, 300)) {
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

std::string section(const Analysis& a, const std::string& date) {
  const Trace& t = *a.trace;
  std::string out = fmt::format("\n## {}: {}\n\n{}{}\n", date, cell(t.path.filename().string()),
                                t.import.partial ? "**PARTIAL.** " : "", cell(headline(a)));
  if (!a.ranking.rows.empty()) {
    out +=
        "\n| total ms | share | calls | mean us | min us | max us | p95 us | category | kernel |\n"
        "|---:|---:|---:|---:|---:|---:|---:|---|---|\n";
    for (size_t i = 0; i < a.ranking.rows.size() && i < 25; ++i) {
      const KernelRow& r = a.ranking.rows[i];
      out += fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} | {} |\n", milliseconds(r.total), percent(r.share),
                         r.calls, microseconds(r.mean()), microseconds(static_cast<double>(r.min)),
                         microseconds(static_cast<double>(r.max)), microseconds(static_cast<double>(r.p95)),
                         cell(a.categories.categories[r.category].label),
                         cell(fit(display_name(t.names.text(r.name)), 100)));
    }
    if (a.ranking.rows.size() > 25)
      out += fmt::format("\n{} more kernels are not shown.\n", a.ranking.rows.size() - 25);
    out += "\n| category | total ms | share | calls |\n|---|---:|---:|---:|\n";
    for (const CategoryRow& r : a.categories.rows)
      out += fmt::format("| {} | {} | {} | {} |\n", cell(a.categories.categories[r.category].label),
                         milliseconds(r.total), percent(r.share), r.calls);
    out +=
        "\n| device | total ms (sum) | busy ms (union) | span ms | idle ms | largest hole "
        "|\n|---|---:|---:|---:|---:|---:|\n";
    for (const DeviceSummary& d : a.summary.devices) {
      const Device& device = t.devices[index(d.device)];
      out += fmt::format("| {} | {} | {} | {} | {} | {} |\n", cell("GPU " + device.id + " " + device.rank_label),
                         milliseconds(d.total), milliseconds(d.busy), milliseconds(d.span()), milliseconds(d.idle()),
                         d.holes.empty() ? "none" : time_text(d.holes.front().duration));
    }
  }
  const auto sentences = import_sentences(t);
  if (!sentences.empty()) out += "\n";
  for (const std::string& s : sentences) out += "- " + cell(s) + "\n";
  return out;
}

}  // namespace

std::string markdown_report(const std::vector<Analysis>& analyses, const std::string& date) {
  std::string out;
  for (const Analysis& a : analyses) out += section(a, date);
  return out;
}

void append_markdown(const std::filesystem::path& path, const std::vector<Analysis>& analyses) {
  std::error_code ignored;
  std::string text = std::filesystem::exists(path, ignored) ? read_file(path) : "# Findings from GPU traces\n";
  if (!text.empty() && text.back() != '\n') text += '\n';
  text += markdown_report(analyses, today());
  OutputFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace fathom::trace
