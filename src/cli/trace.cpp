#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/interrupt.h"
#include "base/progress.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "trace/analysis.h"
#include "trace/diff.h"
#include "trace/html/html_report.h"
#include "trace/json_report.h"
#include "trace/markdown_report.h"
#include "trace/ranks.h"
#include "trace/reader.h"
#include "trace/text_report.h"

namespace fathom::cli {
namespace {

struct TraceOptions {
  std::vector<std::string> files, rules, explain;
  std::string json, markdown, html;
  std::string model, gpu;
  bool diff = false, ranks = false;
  int64_t top = 15, width = 0, batch = 1;
  double target = 0;
};

constexpr int exit_partial = 3;

size_t terminal_width(int64_t wanted) {
  if (wanted > 0) return static_cast<size_t>(wanted);
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return std::max<size_t>(60, size.ws_col);
  return 120;
}

trace::Trace read_with_progress(const std::filesystem::path& path) {
  std::error_code ignored;
  const uint64_t size = std::filesystem::file_size(path, ignored);
  Progress progress("reading " + printable(path.filename().string(), 40), size);
  return trace::read_trace(path, {.progress = [&](uint64_t done, uint64_t) { progress.update(done); }});
}

/// What several files are to each other: two of the same rank are before and after, different ranks are compared.
enum class Relation { single, diff, ranks };

Relation relation_of(const TraceOptions& o, const std::vector<trace::Analysis>& analyses) {
  size_t devices = 0;
  for (const trace::Analysis& a : analyses) devices += a.summary.devices.size();
  if (o.diff && analyses.size() != 2) fail("trace: --diff compares exactly two traces; {} were given", analyses.size());
  if (o.diff) return Relation::diff;
  if (o.ranks) return Relation::ranks;  // refuses by itself when there are not two
  std::set<int> ranks;
  for (const trace::Analysis& a : analyses)
    if (a.trace->rank) ranks.insert(*a.trace->rank);
  if (analyses.size() == 2 && ranks.size() < 2) return Relation::diff;
  const bool all_different = ranks.size() == analyses.size() && analyses.size() > 1;
  return devices > 1 && (all_different || analyses.size() == 1) ? Relation::ranks : Relation::single;
}

/// Reads every file. Of several, one that is no trace is told and left out (the report is then partial); a single one
/// is an error.
std::vector<trace::Trace> read_all(const TraceOptions& o, bool& partial) {
  const auto paths = trace::expand_paths(o.files);
  std::vector<trace::Trace> traces;
  std::string first_error;
  for (const auto& path : paths) {
    try {
      traces.push_back(read_with_progress(path));
    } catch (const Error& e) {
      if (paths.size() == 1 || interrupted()) throw;
      std::fprintf(stderr, "fathom: left out: %s\n", e.what());
      if (first_error.empty()) first_error = e.what();
      partial = true;
    }
  }
  if (traces.empty())
    fail("none of the {} files is a trace that can be read; the first: {}", paths.size(), first_error);
  return traces;
}

trace::Goal goal_of(const TraceOptions& o) {
  trace::Goal goal{o.target, o.batch, !o.model.empty(), {}};
  if (o.gpu.empty()) return goal;
  goal.gpu = trace::find_gpu(o.gpu);
  if (!goal.gpu) fail("--gpu {}: not a GPU that fathom trace knows ({})", printable(o.gpu), trace::known_gpus());
  return goal;
}

int report(const TraceOptions& o, const trace::CategoryRules& rules) {
  bool partial = false;
  const std::vector<trace::Trace> traces = read_all(o, partial);
  std::vector<trace::Analysis> analyses;
  const trace::Goal goal = goal_of(o);
  for (const trace::Trace& t : traces) {
    analyses.push_back(trace::analyse(t, rules, goal));
    partial |= t.import.partial;
  }
  const Relation relation = relation_of(o, analyses);
  std::optional<trace::TraceDiff> diff;
  std::optional<trace::RankComparison> ranks;
  if (relation == Relation::diff) diff = trace::compare(analyses[0], analyses[1]);
  if (relation == Relation::ranks) ranks = trace::compare_ranks(analyses);
  if (!o.json.empty() || !o.html.empty()) {
    const std::string text = trace::json_report(analyses, diff ? &*diff : nullptr, ranks ? &*ranks : nullptr);
    if (o.json == "-")
      print(text);
    else if (!o.json.empty())
      write_file(o.json, text);
    if (!o.html.empty()) write_file(o.html, trace::html_report(analyses, text));
  }
  if (!o.markdown.empty()) {
    std::string text = trace::markdown_report(analyses, trace::today());
    if (diff) text += trace::diff_markdown(*diff, analyses[0], analyses[1]);
    if (ranks) text += trace::ranks_markdown(*ranks);
    trace::append_markdown(o.markdown, text);
  }
  if (o.json != "-") {
    const trace::TextOptions options{terminal_width(o.width), static_cast<size_t>(o.top),
                                     ::isatty(STDOUT_FILENO) == 1 && !std::getenv("NO_COLOR")};
    if (diff) print(trace::diff_text(*diff, analyses[0], analyses[1], options.width, options.top));
    // Without common collectives each rank tells more, and so does a file of several devices that hardly wait.
    const bool ranks_first = ranks && ranks->collectives > 0 && (analyses.size() > 1 || ranks->waiting_share() >= 0.02);
    if (ranks_first) print(trace::ranks_text(*ranks, options.width));
    for (size_t i = 0; i < analyses.size(); ++i)
      print((i || diff || ranks_first ? "\n" : "") + trace::text_report(analyses[i], options));
    if (ranks && !ranks_first) print("\n" + trace::ranks_text(*ranks, options.width));
  }
  return partial ? exit_partial : 0;
}

int run_trace(const TraceOptions& o) {
  trace::CategoryRules rules = trace::CategoryRules::built_in();
  for (auto at = o.rules.rbegin(); at != o.rules.rend(); ++at)  // the first file given is tried first
    rules.prepend(read_file(*at, size_t{16} << 20), printable(*at, 200));
  for (const std::string& name : o.explain) {
    const std::string reason = rules.reason(name, trace::WorkKind::kernel);
    print(fmt::format("{}: {} ({})\n", printable(name, 400),
                      rules.categories()[rules.classify(name, trace::WorkKind::kernel)].id,
                      reason.empty() ? "no rule matches" : reason));
  }
  if (o.files.empty()) {
    if (o.explain.empty()) fail("trace: name at least one trace file or folder (see fathom trace --help)");
    return 0;
  }
  return report(o, rules);
}

}  // namespace

Command trace_command() {
  return {
      "trace", "Where the GPU time of a trace went, why, and what could be gained",
      [](Parser& p) -> std::function<int()> {
        auto o = std::make_shared<TraceOptions>();
        p.positional("FILE", o->files,
                     "Traces or folders of traces: PyTorch, JAX, Nsight Systems .sqlite, fathom --profile", false);
        p.option("--json", o->json, "Write everything as JSON to this file; - for the standard output");
        p.option("--html", o->html, "Write the report as one HTML file that needs no network");
        p.option("--md", o->markdown, "Append a dated section to this Markdown file");
        p.option("--top", o->top, "Rows of the ranking", 1, 100000);
        p.option("--rules", o->rules, "File of category rules, tried before the built-in ones");
        p.option("--explain", o->explain, "Tell the category of this kernel name and the rule that decides");
        p.option("--target", o->target, "Tokens per second wanted: what that takes is told", 0, 1e9);
        p.option("--batch", o->batch, "Sequences that a step decodes (with --target)", 1, 1000000);
        p.choice("--model", o->model, {"v4-flash"}, "Tell the floors of this model's calls from bytes and operations");
        p.option("--gpu", o->gpu, "GPU for --model, when the trace does not name it: H200, RTX 5090, ...");
        p.flag("--diff", o->diff, "Compare two traces, before and after (default for two files of one rank)");
        p.flag("--ranks", o->ranks, "Compare ranks (default for files of different ranks)");
        p.option("--width", o->width, "Columns of the report (60 or more); 0 takes the terminal's", 0, 1000);
        p.footer(
            "Exit status: 0 done, 1 not a trace or unreadable, 2 usage, 3 the file is damaged and the report PARTIAL.\n"
            "Example: fathom trace rank0.json.gz --md PROFILE_FINDINGS.md");
        return [o] { return run_trace(*o); };
      }};
}

}  // namespace fathom::cli
