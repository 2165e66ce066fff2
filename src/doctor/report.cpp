#include "doctor/report.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/progress.h"

namespace fathom::doctor {
namespace {

std::string rate_text(double per_second, const char* unit) {
  if (per_second <= 0) return "-";
  const double giga = per_second * 1e-9;
  return giga >= 10'000 ? fmt::format("{:.1f} T{}", giga * 1e-3, unit)
                        : fmt::format("{:.{}f} G{}", giga,
                                      giga < 10    ? 2
                                      : giga < 100 ? 1
                                                   : 0,
                                      unit);
}

/// Lines "what: value" on measured rates.
std::vector<std::pair<std::string, std::string>> rate_lines(const Report& r) {
  std::vector<std::pair<std::string, std::string>> out;
  if (r.rates) {
    const Rates& m = *r.rates;
    if (m.cpu_why_not.empty()) {
      out.emplace_back("CPU copy (read + write)", rate_text(m.cpu_copy, "B/s"));
      out.emplace_back("CPU fp32 multiply-add", rate_text(m.cpu_fp32, "FLOP/s"));
      out.emplace_back("CPU bf16", "not measured: the CPU operations multiply in fp32");
    } else {
      out.emplace_back("CPU rates", "not measured: " + m.cpu_why_not);
    }
    if (m.gpu_why_not.empty()) {
      out.emplace_back(m.gpu + " copy (read + write)", rate_text(m.gpu_copy, "B/s"));
      out.emplace_back(m.gpu + " fp32", rate_text(m.gpu_fp32, "FLOP/s"));
      out.emplace_back(m.gpu + " bf16 tensor cores", rate_text(m.gpu_bf16, "FLOP/s"));
      if (m.gpu_fp8 > 0) out.emplace_back(m.gpu + " fp8 mma.sync", rate_text(m.gpu_fp8, "FLOP/s"));
    } else {
      out.emplace_back("GPU rates", "not measured: " + m.gpu_why_not);
    }
    if (m.links.empty()) out.emplace_back("all-reduce latency", "not measured: " + m.all_reduce_why_not);
    for (const dist::Measurement& l : m.links)
      out.emplace_back(l.what, l.unit.empty() ? "not measured" : fmt::format("{:.1f} {}", l.value, l.unit));
  }
  if (r.disk) {
    if (r.disk->why_not.empty())
      out.emplace_back("model's folder",
                       fmt::format("{} ({} of {}{})", rate_text(r.disk->rate(), "B/s"), human_bytes(r.disk->bytes),
                                   r.disk->file, r.disk->direct ? "" : "; through the page cache, so perhaps memory"));
    else
      out.emplace_back("model's folder", "not measured: " + r.disk->why_not);
  }
  return out;
}

std::string milliseconds(double seconds) {
  const double v = seconds * 1e3;
  return v == 0 ? "0" : fmt::format("{:.{}f}", v, v < 0.1 ? 4 : v < 10 ? 3 : v < 1000 ? 1 : 0);
}

/// Cells of the table of parts.
std::vector<std::vector<std::string>> part_rows(const Verdict& v) {
  std::vector<std::vector<std::string>> rows;
  double bounds = 0;
  for (const Part& p : v.parts) {
    if (p.id == "other" && p.share < 0.0005) continue;
    bounds += std::max(0.0, p.bound);
    const std::string times = p.bound > 0 && p.seconds > 0 ? fmt::format("{:.3g}x", p.seconds / p.bound) : "-";
    rows.push_back({p.label, milliseconds(p.seconds), fmt::format("{:.1f} %", 100 * p.share),
                    p.bound < 0 ? "-" : milliseconds(p.bound), times});
  }
  rows.push_back({"all", milliseconds(v.seconds), "100.0 %", v.bound ? milliseconds(v.bound->time()) : "-",
                  v.bound && v.steps > 0 ? fmt::format("{:.3g}x", v.seconds / v.bound->time()) : "-"});
  return rows;
}

std::vector<std::string> part_head(const Verdict& v) {
  return {"part", v.steps > 0 ? "ms a step" : "ms", "share", "bound ms", "over it"};
}

std::string verdict_head(const Verdict& v) {
  std::string out = fmt::format("{} ({}", v.file, v.device);
  if (v.devices > 1) out += fmt::format(", the busiest of {} devices", v.devices);
  out += ")";
  if (v.bound) out += "; bound of " + v.bound_of;
  return out;
}

/// Peer access as a matrix: row reads column.
std::string peer_matrix(const NvmlReport& nvml) {
  if (nvml.gpus.size() < 2) return "";
  std::string out = "Peer access (row reads column: yes, NV over NVLink, no, ?)\n      ";
  for (const GpuState& g : nvml.gpus) out += fmt::format("{:>5}", g.index);
  for (const GpuState& from : nvml.gpus) {
    out += fmt::format("\n  {:>4}", from.index);
    for (const GpuState& to : nvml.gpus) {
      const char* cell = from.index == to.index ? "." : "?";
      for (const GpuPair& p : nvml.pairs)
        if (p.from == from.index && p.to == to.index && p.peer_read)
          cell = *p.peer_read != 0 ? "no" : p.nvlink.value_or(1) == 0 ? "NV" : "yes";
      out += fmt::format("{:>5}", cell);
    }
  }
  return out + "\n";
}

std::string summary_line(const Report& r) {
  const auto counted = [](size_t n, const char* what) { return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s"); };
  return fmt::format("{} bad, {}, {}, {} ok", r.count(Level::bad), counted(r.count(Level::warning), "warning"),
                     counted(r.count(Level::note), "note"), r.count(Level::ok));
}

}  // namespace

size_t Report::count(Level level) const {
  return static_cast<size_t>(
      std::count_if(checks.begin(), checks.end(), [&](const Check& c) { return c.level == level; }));
}

std::string text_report(const Report& r) {
  std::string out;
  for (const Check& c : r.checks) {
    out += fmt::format("{:<8} {:<9} {}\n", level_name(c.level), c.area, c.found);
    if (!c.cause.empty()) out += fmt::format("{:<18} cause: {}\n", "", c.cause);
    if (!c.remedy.empty()) out += fmt::format("{:<18} remedy: {}\n", "", c.remedy);
  }
  if (const std::string matrix = peer_matrix(r.nvml); !matrix.empty()) out += "\n" + matrix;
  if (const auto lines = rate_lines(r); !lines.empty()) {
    out += "\nMeasured\n";
    for (const auto& [what, value] : lines) out += fmt::format("  {:<28} {}\n", what, value);
  }
  if (r.server) {
    out += "\nLoad test\n" + bench::text_report(r.server->sweep);
    out += r.server->trace.empty() ? fmt::format("No profile: {}\n", r.server->trace_why_not)
                                   : fmt::format("Profile: {}\n", r.server->trace);
  }
  for (const Verdict& v : r.verdicts) {
    out += fmt::format("\nVerdict on {}\n{}\n\n", verdict_head(v), verdict_sentence(v));
    const auto head = part_head(v);
    out += fmt::format("  {:<16}{:>12}{:>10}{:>12}{:>10}\n", head[0], head[1], head[2], head[3], head[4]);
    for (const auto& row : part_rows(v))
      out += fmt::format("  {:<16}{:>12}{:>10}{:>12}{:>10}\n", row[0], row[1], row[2], row[3], row[4]);
    for (const Part& p : v.parts) {
      if (p.share < 0.01) continue;
      out += fmt::format("  {}: {}\n", p.label, p.cause);
      if (!p.remedy.empty()) out += fmt::format("    remedy: {}\n", p.remedy);
    }
  }
  for (const std::string& why : r.judged_without) out += fmt::format("\n{}\n", why);
  return out + "\n" + summary_line(r) + "\n";
}

std::string markdown_report(const Report& r) {
  // A cell must not end its row, and text of a trace must not become markup.
  const auto cell = [](const std::string& text) {
    std::string out;
    for (const char c : text) {
      if (c == '|' || c == '<' || c == '>' || c == '`' || c == '*' || c == '_' || c == '[' || c == ']') out += '\\';
      out += c;
    }
    return out;
  };
  std::string out =
      fmt::format("## fathom doctor, {}\n\n{}\n\n| | what | found | cause | remedy |\n|---|---|---|---|---|\n", r.time,
                  summary_line(r));
  for (const Check& c : r.checks)
    out += fmt::format("| {} | {} | {} | {} | {} |\n", level_name(c.level), cell(c.area), cell(c.found), cell(c.cause),
                       cell(c.remedy));
  if (const std::string matrix = peer_matrix(r.nvml); !matrix.empty()) out += "\n```\n" + matrix + "```\n";
  if (const auto lines = rate_lines(r); !lines.empty()) {
    out += "\n| measured | |\n|---|---|\n";
    for (const auto& [what, value] : lines) out += fmt::format("| {} | {} |\n", cell(what), cell(value));
  }
  for (const Verdict& v : r.verdicts) {
    out += fmt::format("\n### Verdict on {}\n\n{}\n\n|", cell(verdict_head(v)), cell(verdict_sentence(v)));
    for (const std::string& name : part_head(v)) out += " " + name + " |";
    out += "\n|---|---|---|---|---|\n";
    for (const auto& row : part_rows(v)) {
      out += "|";
      for (const std::string& value : row) out += " " + cell(value) + " |";
      out += "\n";
    }
    out += "\n";
    for (const Part& p : v.parts)
      if (p.share >= 0.01)
        out += fmt::format("- **{}**: {}{}\n", p.label, cell(p.cause),
                           p.remedy.empty() ? "" : ". Remedy: " + cell(p.remedy));
  }
  for (const std::string& why : r.judged_without) out += "\n" + cell(why) + "\n";
  if (r.server) out += "\n" + bench::markdown_report(r.server->sweep);
  return out + "\n";
}

}  // namespace fathom::doctor
