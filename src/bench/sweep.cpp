#include "bench/sweep.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "base/interrupt.h"
#include "base/progress.h"
#include "engine/draft_shares.h"
#include "engine/speculator.h"

namespace fathom::bench {

std::string load_text(const Level& l) {
  return l.rate > 0 ? fmt::format("{:g}/s", l.rate) : fmt::format("{:g}", l.concurrency);
}

namespace {

LevelRun run_level(Target& target, Workload& workload, const LevelPlan& plan, const std::string& what) {
  Progress progress(what, static_cast<uint64_t>(plan.requests), "requests");
  return target.run(plan, workload, [&](int64_t ended) { progress.update(static_cast<uint64_t>(ended)); });
}

std::string ms(double seconds) {
  const double v = seconds * 1e3;
  return fmt::format("{:.{}f}", v, v >= 100 ? 0 : v >= 10 ? 1 : 2);
}

std::string rate_text(double v) {
  return fmt::format("{:.{}f}", v, v >= 1000 ? 0 : v >= 10 ? 1 : 2);
}

std::string fit_text(const Fit& f) {
  if (!f.valid) return "No fit of step time: " + f.why + ".";
  std::string line =
      fmt::format("Step time = {:.3f} ms (+-{:.3f}) + {:.4f} ms (+-{:.4f}) x open requests; asymptote {} tokens/s",
                  f.a * 1e3, f.a_error * 1e3, f.b * 1e3, f.b_error * 1e3, rate_text(f.asymptote));
  line += f.asymptote_high > 0 ? fmt::format(" ({} to {})", rate_text(f.asymptote_low), rate_text(f.asymptote_high))
                               : fmt::format(" (at least {})", rate_text(f.asymptote_low));
  return line + "; 95 % intervals.";
}

struct Column {
  const char* name;
  std::string (*value)(const Level&, const LevelStats&);
};

constexpr Column columns[] = {
    {"load", [](const Level& l, const LevelStats&) { return load_text(l); }},
    {"tokens/s", [](const Level&, const LevelStats& s) { return rate_text(s.output_rate); }},
    {"each", [](const Level&,
                const LevelStats& s) { return rate_text(s.stretch.mean > 0 ? s.output_rate / s.stretch.mean : 0); }},
    {"with prompts", [](const Level&, const LevelStats& s) { return rate_text(s.total_rate); }},
    {"TTFT p50", [](const Level&, const LevelStats& s) { return ms(s.first_token.p50); }},
    {"p90", [](const Level&, const LevelStats& s) { return ms(s.first_token.p90); }},
    {"p99", [](const Level&, const LevelStats& s) { return ms(s.first_token.p99); }},
    {"ITL p50", [](const Level&, const LevelStats& s) { return ms(s.gap.p50); }},
    {"p99", [](const Level&, const LevelStats& s) { return ms(s.gap.p99); }},
    {"TPOT p50", [](const Level&, const LevelStats& s) { return ms(s.token_time.p50); }},
    {"whole p50", [](const Level&, const LevelStats& s) { return ms(s.whole.p50); }},
    {"tok/piece", [](const Level&, const LevelStats& s) { return fmt::format("{:.2f}", s.tokens_a_piece); }},
    {"errors", [](const Level&, const LevelStats& s) { return fmt::format("{}", s.errors); }},
    {"steady s", [](const Level&, const LevelStats& s) { return fmt::format("{:.1f}", s.stretch.length()); }},
    {"spread",
     [](const Level& l, const LevelStats&) {
       return l.repeats.size() > 1 ? fmt::format("{:.1f} %", 100 * l.spread()) : "-";
     }},
};

std::string head_text(const Sweep& s) {
  const auto range = [](const Lengths& l) {
    return l.low == l.high ? fmt::format("{}", l.low) : fmt::format("{} to {}", l.low, l.high);
  };
  return fmt::format("{}\n{} of about {} tokens, {} tokens of output{}; {}\n", s.target, s.content,
                     range(s.workload.input), range(s.workload.output),
                     s.workload.shared_prefix ? ", prompts begin alike" : "", s.started);
}

}  // namespace

const LevelStats& Level::median() const {
  std::vector<const LevelStats*> order;
  for (const LevelStats& s : repeats) order.push_back(&s);
  std::sort(order.begin(), order.end(), [](auto* a, auto* b) { return a->output_rate < b->output_rate; });
  return *order[order.size() / 2];
}

double Level::spread() const {
  double low = repeats.front().output_rate, high = low, sum = 0;
  for (const LevelStats& s : repeats)
    low = std::min(low, s.output_rate), high = std::max(high, s.output_rate), sum += s.output_rate;
  return sum > 0 ? (high - low) / 2 / (sum / static_cast<double>(repeats.size())) : 0;
}

Sweep run_sweep(Target& target, const WorkloadOptions& workload_options, const SweepOptions& o) {
  Sweep sweep;
  sweep.target = target.describe();
  sweep.workload = workload_options;
  sweep.started = fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(std::time(nullptr)));
  Workload workload(workload_options);
  uint64_t index = 0;
  std::vector<int64_t> levels = o.levels;
  if (o.rate > 0) levels = {0};
  std::vector<LevelStats> all;
  for (const int64_t concurrency : levels) {
    Level level{static_cast<double>(concurrency), o.rate, {}};
    const std::string name =
        o.rate > 0 ? fmt::format("{:g} requests/s", o.rate) : fmt::format("{} open requests", concurrency);
    for (int64_t repeat = 0; repeat < o.repeats && !interrupted(); ++repeat) {
      if (o.warm_up) {
        const int64_t open = std::max<int64_t>(1, concurrency > 0 ? concurrency : static_cast<int64_t>(o.rate));
        run_level(target, workload, {open, 0, open, index}, "warming up, " + name);
        index += static_cast<uint64_t>(open);
      }
      const int64_t requests =
          o.requests > 0 ? o.requests : std::max(o.least, o.rounds * std::max<int64_t>(concurrency, 1));
      if (interrupted()) break;
      LevelStats stats = analyse(run_level(target, workload, {concurrency, o.rate, requests, index}, name));
      index += static_cast<uint64_t>(requests);
      all.push_back(stats);
      level.repeats.push_back(std::move(stats));
    }
    if (!level.repeats.empty() && concurrency > 0 && !interrupted())
      level.floor = target.floor(static_cast<double>(concurrency));
    if (!level.repeats.empty()) sweep.levels.push_back(std::move(level));
  }
  sweep.interrupted = interrupted();
  sweep.fit = fit_step_time(all);
  return sweep;
}

static SpeculationStats stats_of(const DraftCounts& d) {
  SpeculationStats s;
  s.proposals = d.proposals, s.offered = d.offered, s.accepted = d.accepted, s.failed = d.faults;
  return s;
}

std::vector<std::string> remarks(const Sweep& s) {
  std::vector<std::string> out;
  size_t uncounted = 0, looping = 0, requests = 0;
  for (const Level& l : s.levels) {
    const LevelStats& m = l.median();
    uncounted += m.uncounted, looping += m.looping, requests += m.requests;
    if (m.stretch.length() <= 0) out.push_back(fmt::format("Load {}: never at full load; no rates.", load_text(l)));
    if (l.concurrency > 0 && m.stretch.peak < l.concurrency)
      out.push_back(fmt::format("Load {}: at most {:g} requests were open at a time; left out of the fit.",
                                load_text(l), m.stretch.peak));
    if (m.early < 0.9 && m.stretch.length() > 0)
      out.push_back(
          fmt::format("Load {}: the first fifth of the steady stretch gave {:.0f} % of the later rate: prompts that "
                      "came together were still being read (prefill ramp). More --rounds make it matter less.",
                      load_text(l), 100 * m.early));
    if (m.late.p99 > 0.1)
      out.push_back(fmt::format("Load {}: requests were sent up to {:.2f} s late.", load_text(l), m.late.most));
    for (const std::string& error : m.first_errors)
      out.push_back(fmt::format("Load {}: {} of {} failed, e.g. {}", load_text(l), m.errors, m.requests, error));
    if (m.output_tokens > 0 && m.output_tokens < 0.9 * s.workload.output.mean())
      out.push_back(fmt::format("Load {}: outputs were {:.0f} tokens on average, {:g} were asked for.", load_text(l),
                                m.output_tokens, s.workload.output.mean()));
    if (const std::string fault = draft_fault(stats_of(m.drafts)); !fault.empty() && !m.drafts.forced)
      out.push_back(fmt::format("Load {}: {}.", load_text(l), fault));
    if (m.cached_share > 0.05)
      out.push_back(fmt::format("Load {}: {:.0f} % of the prompt tokens came from the prefix cache.", load_text(l),
                                100 * m.cached_share));
  }
  if (uncounted > 0)
    out.push_back(fmt::format("{} answers had no usage: their tokens are counted as pieces of the stream.", uncounted));
  if (looping > 0)
    out.push_back(
        fmt::format("{} of {} outputs end in a loop: their speed may not be that of real text (drafts are easier).",
                    looping, requests));
  if (s.interrupted) out.push_back("Interrupted: the last level is not complete.");
  return out;
}

/// Steps and drafts of a level; empty where they are not known.
std::string draft_text(const Level& l) {
  const DraftCounts& d = l.median().drafts;
  if (d.steps == 0) return {};
  std::string text =
      fmt::format("Load {}: {:.1f} steps/s, {:.2f} tokens a step", load_text(l), d.steps_a_second(), d.tokens_a_step());
  if (d.offered == 0) return text + ".";
  text += fmt::format("; {} of {} drafts right, by place {}", d.accepted, d.offered,
                      shares_by_place(d.offered_at, d.accepted_at));
  return text + ".";
}

/// The step beside its floor, a line for each level that has one.
std::string floor_text(const Level& l) {
  const StepFloor& f = *l.floor;
  const double step = l.median().gap.p50;
  return fmt::format(
      "Load {}: step {} ms (median), floor {} ms: {:.0f} %. Floor: {:.2f} GB (context {:.0f}, {:.1f} different experts "
      "a "
      "layer; {:.1f} if routing were even) at {:.2f} TB/s, copied in this run.",
      load_text(l), ms(step), ms(f.seconds()), 100 * f.seconds() / std::max(step, 1e-9), f.bytes / 1e9, f.context,
      f.experts, f.expected_experts, f.bandwidth / 1e12);
}

std::string text_report(const Sweep& s) {
  std::string out = head_text(s) + "\n";
  for (const Column& c : columns)
    out += fmt::format("{:>{}}", c.name, std::max<size_t>(std::string_view(c.name).size(), 8) + 1);
  out += '\n';
  for (const Level& l : s.levels) {
    for (const Column& c : columns)
      out += fmt::format("{:>{}}", c.value(l, l.median()), std::max<size_t>(std::string_view(c.name).size(), 8) + 1);
    out += '\n';
  }
  out += "Milliseconds where nothing else is said. Rates are of the steady stretch: the longest one at full load.\n";
  if (!s.levels.empty()) {
    const LevelStats& m = s.levels.back().median();
    out += fmt::format(
        "Prompts had {:.0f} tokens on average; ramp {:.1f} s and drain {:.1f} s of the last level are left out (with "
        "them "
        "{} tokens/s); {:.0f} us of processor time a token in this program.\n",
        m.prompt_tokens, m.stretch.before, m.stretch.after, rate_text(m.whole_rate), m.cpu_a_token * 1e6);
  }
  for (const Level& l : s.levels)
    if (const std::string text = draft_text(l); !text.empty()) out += text + "\n";
  for (const Level& l : s.levels)
    if (l.floor) out += floor_text(l) + "\n";
  out += fit_text(s.fit) + "\n";
  for (const std::string& r : remarks(s)) out += "- " + r + "\n";
  return out;
}

std::string markdown_report(const Sweep& s) {
  std::string out = "## Load test\n\n" + head_text(s) + "\n|";
  for (const Column& c : columns) out += fmt::format(" {} |", c.name);
  out += "\n|";
  for (size_t i = 0; i < std::size(columns); ++i) out += "---|";
  for (const Level& l : s.levels) {
    out += "\n|";
    for (const Column& c : columns) out += fmt::format(" {} |", c.value(l, l.median()));
  }
  out += "\n\nMilliseconds where nothing else is said; rates of the longest stretch at full load. " + fit_text(s.fit) +
         "\n\n";
  for (const Level& l : s.levels)
    if (const std::string text = draft_text(l); !text.empty()) out += "- " + text + "\n";
  for (const Level& l : s.levels)
    if (l.floor) out += "- " + floor_text(l) + "\n";
  for (const std::string& r : remarks(s)) out += "- " + r + "\n";
  return out;
}

}  // namespace fathom::bench
