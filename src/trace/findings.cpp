#include "trace/findings.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "base/error.h"
#include "trace/format.h"
#include "trace/names.h"
#include "trace/occupancy.h"
#include "trace/saving.h"
#include "trace/stretches.h"

namespace fathom::trace {
namespace {

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  return out;
}

std::string grid_text(const LaunchShape& s) {
  return fmt::format("grid ({}, {}, {}) of ({}, {}, {}) threads", s.grid[0], s.grid[1], s.grid[2], s.block[0],
                     s.block[1], s.block[2]);
}

std::string times_text(double factor) {
  return factor < 10 ? fmt::format("{:.1f}", factor) : count_text(std::llround(factor));
}

class Diagnoser {
 public:
  Diagnoser(const Trace& trace, const Summary& summary, const Ranking& ranking, const CategoryTable& categories,
            const StepAnalysis& steps, const Goal& goal)
      : trace_(trace),
        summary_(summary),
        ranking_(ranking),
        categories_(categories),
        steps_(steps),
        goal_(goal),
        saving_(trace, summary, ranking) {}

  Diagnosis run() {
    out_.row_speedup.assign(ranking_.rows.size(), 1);
    out_.category_speedup.assign(categories_.rows.size(), 1);
    if (ranking_.rows.empty() || summary_.busy <= 0) return out_;
    stretches_ = find_stretches(trace_, ranking_, categories_, steps_);
    out_.base = summary_.busy + stretches_.gap_time;
    few_blocks();
    shared_kv();
    simt_gemm();
    glue();
    launch_bound();
    communication();
    copies();
    between_steps();
    overruns();
    floors();
    goal();
    ceilings();
    std::stable_sort(out_.findings.begin(), out_.findings.end(),
                     [](const Finding& a, const Finding& b) { return a.gain > b.gain; });
    return std::move(out_);
  }

 private:
  const std::string& category(const KernelRow& r) const { return categories_.categories[r.category].id; }
  std::string name(const KernelRow& r) const { return fit(brief_name(trace_.names.text(r.name)), 100); }
  const LaunchShape& shape(const KernelRow& r) const { return trace_.shapes[index(r.shape)]; }
  double share(Ns t) const { return static_cast<double>(t) / static_cast<double>(out_.base); }

  void add(Finding f) {
    if (!f.rows.empty()) f.ceiling = std::min(f.ceiling, saving_.without(f.rows));
    f.ceiling = std::clamp<Ns>(f.ceiling, 0, out_.base);
    f.gain = std::clamp<Ns>(f.gain, 0, f.ceiling);
    out_.findings.push_back(std::move(f));
  }

  void ceilings() {
    std::map<size_t, std::vector<size_t>> members;
    for (size_t i = 0; i < ranking_.rows.size(); ++i) {
      out_.row_speedup[i] = out_.speedup(saving_.without({&i, 1}));
      members[ranking_.rows[i].category].push_back(i);
    }
    for (size_t i = 0; i < categories_.rows.size(); ++i)
      out_.category_speedup[i] = out_.speedup(saving_.without(members[categories_.rows[i].category]));
    Ns unknown = 0;
    for (const KernelRow& r : ranking_.rows)
      if (r.kind == WorkKind::kernel && !shape(r).has_grid()) unknown += r.total;
    out_.unknown_launches =
        summary_.kernel_total ? static_cast<double>(unknown) / static_cast<double>(summary_.kernel_total) : 0;
  }

  /// The device whose limits are used: all GPUs of one trace are of one kind, except in odd machines.
  SmLimits limits() const {
    for (const DeviceSummary& d : summary_.devices)
      if (const SmLimits l = sm_limits(trace_.devices[index(d.device)]); l.sms > 0) return l;
    return {};
  }

  void few_blocks() {
    const SmLimits l = limits();
    if (l.sms == 0) return;
    Finding f;
    Ns time = 0;
    double saved = 0;
    for (size_t i = 0; i < ranking_.rows.size(); ++i) {
      const KernelRow& r = ranking_.rows[i];
      if (r.kind != WorkKind::kernel || category(r) == "communication" || r.mean() < 3000) continue;
      const Occupancy o = occupancy(shape(r), l);
      if (!has_too_few_blocks(o)) continue;
      time += r.total;
      // Spread over all SMs the work would take blocks/SMs of its time; two launch latencies remain.
      saved += std::max(0.0, static_cast<double>(r.total) * (1 - o.filled_sms) - 2000.0 * static_cast<double>(r.calls));
      f.rows.push_back(i);
    }
    if (f.rows.empty() || share(time) < 0.005) return;
    const KernelRow& top = ranking_.rows[f.rows.front()];
    const Occupancy o = occupancy(shape(top), l);
    f.id = "few_blocks";
    f.title =
        fmt::format("{} with too few blocks for the {} SMs take{} {} ({}); the largest is {}, which fills {}",
                    counted(static_cast<int64_t>(f.rows.size()), "kernel"), l.sms, f.rows.size() == 1 ? "s" : "",
                    time_text(time), percent(share(time)), name(top),
                    counted(std::min(static_cast<int64_t>(shape(top).blocks()), static_cast<int64_t>(l.sms)), "SM"));
    f.evidence = fmt::format("{}: {} on {} SMs{}; communication and persistent kernels are not counted",
                             grid_text(shape(top)), counted(static_cast<int64_t>(shape(top).blocks()), "block"), l.sms,
                             o.known ? fmt::format(", {} warps resident of the GPU's capacity", percent(o.warps)) : "");
    f.advice =
        "split the work over more blocks (split-K, split over KV rows, several tiles a row) or run it beside other "
        "work";
    f.ceiling = time;
    f.gain = static_cast<Ns>(saved);
    add(std::move(f));
  }

  /// One block for each head (and query) over a KV that all heads share reads it once for each head. fathom's own
  /// kernels have grids of the same sizes (splits, tokens), and blocks with many heads.
  void shared_kv() {
    if (trace_.producer == Producer::fathom) return;
    Finding f;
    Ns time = 0;
    uint64_t heads = 0;
    for (size_t i = 0; i < ranking_.rows.size(); ++i) {
      const KernelRow& r = ranking_.rows[i];
      const std::string low = lower(trace_.names.text(r.name));
      const LaunchShape& s = shape(r);
      const bool one_kv = has(low, "mla") || has(low, "sparse_attn") || has(low, "sparse_attention") || has(low, "mqa");
      if (category(r) != "attention" || !one_kv || !s.has_grid() || has(low, "reduce") || has(low, "combine") ||
          has(low, "metadata"))
        continue;
      uint64_t n = 0;
      for (const uint32_t g : s.grid)
        if (g == 16 || g == 32 || g == 64 || g == 128) n = std::max<uint64_t>(n, g);
      if (n == 0 || s.blocks() / n > 64) continue;
      heads = std::max(heads, n);
      time += r.total;
      f.rows.push_back(i);
    }
    if (f.rows.empty() || share(time) < 0.01) return;
    const KernelRow& top = ranking_.rows[f.rows.front()];
    f.id = "kv_reread";
    f.title = fmt::format(
        "{} launches one row of blocks for each of {} heads: KV that the heads share is read up to {} times ({}, {})",
        name(top), heads, heads, time_text(time), percent(share(time)));
    f.evidence = grid_text(shape(top)) + "; the name tells an attention whose heads share one KV row (MLA, MQA)";
    f.advice =
        "give one block all heads of a query (a tensor-core tile of heads x rows) and split over KV rows instead";
    f.ceiling = time;
    f.gain = time - time / static_cast<Ns>(std::min<uint64_t>(heads, 16));
    add(std::move(f));
  }

  void simt_gemm() {
    bool tensor_cores = false;
    for (const DeviceSummary& d : summary_.devices) tensor_cores |= trace_.devices[index(d.device)].compute_major >= 7;
    Finding f;
    Ns time = 0;
    for (size_t i = 0; i < ranking_.rows.size(); ++i) {
      const KernelRow& r = ranking_.rows[i];
      if (category(r) != "dense_gemm" && category(r) != "moe_gemm") continue;
      const std::string low = lower(trace_.names.text(r.name));
      const bool simt =
          has(low, "sgemm") || has(low, "simt") || has(low, "_ffma") || has(low, "gemmsn") || has(low, "dgemm");
      if (!simt || has(low, "tensorop") || has(low, "s1688gemm") || has(low, "s16816gemm")) continue;
      time += r.total;
      f.rows.push_back(i);
    }
    if (!tensor_cores || f.rows.empty() || share(time) < 0.005) return;
    f.id = "simt_gemm";
    f.title = fmt::format("{} of matrix products ({}) run without tensor cores: {}", time_text(time),
                          percent(share(time)), name(ranking_.rows[f.rows.front()]));
    f.evidence = "names of FP32 SIMT kernels (sgemm, simt, ffma) on a GPU that has tensor cores";
    f.advice =
        "use TF32, BF16 or FP8 with accumulation in FP32; several BF16 passes give FP32 accuracy where it is needed";
    f.ceiling = time;
    f.gain = time - time / 4;
    add(std::move(f));
  }

  void glue() {
    const auto& g = stretches_.glue;
    if (g.runs == 0 || share(g.time) < 0.005) return;
    Finding f;
    f.id = "glue";
    f.title = fmt::format("{} of small elementwise {}s ({}, {} with gaps, {}); fused they would save about {}",
                          counted(g.runs, "run"), work_word(trace_), counted(g.kernels, work_word(trace_)),
                          time_text(g.time), percent(share(g.time)), time_text(g.saving));
    f.evidence = fmt::format(
        "two or more in a row on one stream, each a norm, RoPE, quantisation, activation, cache write or "
        "copy under 50 us; the longest run has {}",
        g.longest);
    f.advice = "fuse each run into one kernel, or into the product before or behind it";
    for (size_t i = 0; i < ranking_.rows.size(); ++i)
      if (const KernelRow& r = ranking_.rows[i]; r.kind == WorkKind::kernel && categories_.categories[r.category].glue)
        f.rows.push_back(i);
    f.ceiling = g.time;
    f.gain = g.saving;
    add(std::move(f));
  }

  void launch_bound() {
    const Stretches& s = stretches_;
    if (s.launch_gaps > 0 && share(s.launch_gap_time) >= 0.01) {
      Finding f;
      f.id = "launch_bound";
      f.title = fmt::format("the GPU waits {} ({}) for {} that came too late", time_text(s.launch_gap_time),
                            percent(share(s.launch_gap_time)), counted(s.launch_gaps, "launch", "launches"));
      f.evidence = "holes between kernels whose next launch call began after the GPU had run dry";
      f.advice =
          "capture the step in a CUDA graph, launch fewer and larger kernels, take synchronisation out of the step";
      f.gain = f.ceiling = s.launch_gap_time;
      add(std::move(f));
    }
    const Ns rest = s.gap_time - s.launch_gap_time;
    if (rest > 0 && share(rest) >= 0.01) {
      Finding f;
      f.id = "gaps";
      f.title =
          fmt::format("{} ({}) of gaps between kernels inside steps that were launched in time{}", time_text(rest),
                      percent(share(rest)), s.launches_known ? "" : " or whose launches are not recorded");
      f.evidence = fmt::format("{} in {}", counted(s.gaps - s.launch_gaps, "hole"),
                               counted(std::max<int64_t>(1, static_cast<int64_t>(steps_.steps.size())), "step"));
      f.advice = "fewer kernels, or dependent launch (PDL), which lets a kernel start while the one before it drains";
      f.gain = f.ceiling = rest;
      add(std::move(f));
    }
  }

  void communication() {
    const auto& c = stretches_.communication;
    if (c.total == 0 || share(c.total) < 0.01) return;
    Finding f;
    f.id = "communication";
    for (size_t i = 0; i < ranking_.rows.size(); ++i)
      if (category(ranking_.rows[i]) == "communication") f.rows.push_back(i);
    const KernelRow& top = ranking_.rows[f.rows.front()];
    f.title = fmt::format("communication takes {} ({}), {} of it exposed; about {} is waiting for other ranks",
                          time_text(c.total), percent(share(c.total)), time_text(c.exposed), time_text(c.waiting));
    f.evidence = fmt::format("{}: mean {} but min {}; what exceeds each kernel's shortest call is taken for waiting",
                             name(top), time_text(static_cast<Ns>(top.mean())), time_text(top.min));
    f.advice =
        "balance the ranks (compare them: give all ranks' traces at once), overlap communication with compute, or send "
        "less";
    f.ceiling = c.exposed;
    f.gain = std::min(c.waiting, c.exposed);
    add(std::move(f));
  }

  void copies() {
    const auto& m = stretches_.copies;
    if (m.count == 0 || share(m.time) < 0.01) return;
    Finding f;
    f.id = "copies";
    f.title = fmt::format("{} {} {} ({})", counted(m.count, "memory copy or fill", "memory copies and fills"),
                          m.count == 1 ? "takes" : "take", time_text(m.time), percent(share(m.time)));
    for (size_t i = 0; i < ranking_.rows.size(); ++i)
      if (ranking_.rows[i].kind != WorkKind::kernel) f.rows.push_back(i);
    f.evidence = fmt::format("most: {}", fit(brief_name(trace_.names.text(ranking_.rows[f.rows.front()].name)), 100));
    f.advice = m.pageable
                   ? "copies from pageable memory block the host: use pinned buffers, and keep step data on the GPU"
                   : "keep step data on the GPU; fuse fills into the kernels that need them";
    f.gain = f.ceiling = m.time;
    add(std::move(f));
  }

  void between_steps() {
    if (steps_.steps.size() < 2 || steps_.between <= 0) return;
    const double of_span =
        static_cast<double>(steps_.between) / static_cast<double>(steps_.steps.back().end - steps_.steps.front().start);
    if (of_span < 0.02) return;
    Finding f;
    f.id = "between_steps";
    f.title = fmt::format("the {} idles {} between steps ({} of the time from the first to the last)",
                          device_word(trace_), time_text(steps_.between), percent(of_span));
    f.evidence = counted(static_cast<int64_t>(steps_.steps.size()), "step");
    f.advice =
        "overlap scheduling and sampling of the next step with the present one; keep sampled tokens on the device";
    out_.base += steps_.between;
    f.gain = f.ceiling = steps_.between;
    add(std::move(f));
  }

  void overruns() {
    int64_t events = 0;
    Ns most = 0;
    for (const DeviceSummary& d : summary_.devices) {
      events += static_cast<int64_t>(d.defects.size());
      for (const StreamSummary& s : d.streams) most = std::max(most, s.implausible_time);
    }
    if (events == 0) return;
    Finding f;
    f.id = "clock_defects";
    f.title = fmt::format(
        "the durations of {} cannot be real: on the same stream they run over the work behind them, by up to {}",
        counted(events, "kernel"), time_text(most));
    f.evidence =
        "work on one stream cannot outlast its successor's successor; dependent launch overlaps neighbours only";
    f.advice = "use the second ranking, which leaves them out; known from ROCm tracing, newer versions may fix it";
    add(std::move(f));
  }

  /// Calls against what the bytes and operations of the model allow.
  void floors() {
    if (!goal_.v4_flash) return;
    std::optional<GpuFigures> gpu = goal_.gpu;
    for (const Device& d : trace_.devices)
      if (!gpu) gpu = find_gpu(d.name);
    if (!gpu) fail("the trace does not name a known GPU; give one with --gpu ({})", known_gpus());
    const int ranks = trace_.world_size.value_or(1);
    for (const bool attention : {true, false}) {
      const Floor f = attention ? attention_floor(*gpu, goal_.batch, ranks) : experts_floor(*gpu, goal_.batch, ranks);
      for (size_t i = 0; i < ranking_.rows.size(); ++i) {  // the largest kernel of the group
        const KernelRow& r = ranking_.rows[i];
        if (category(r) != (attention ? "attention" : "moe_gemm")) continue;
        const auto mean = static_cast<Ns>(r.mean());
        if (mean <= f.time || share(r.total) < 0.005) break;
        Finding out;
        out.id = attention ? "attention_floor" : "experts_floor";
        out.title = fmt::format("{}: {} a call against a floor of {} on {} ({} times)", name(r), time_text(mean),
                                time_text(f.time), gpu->name,
                                times_text(static_cast<double>(mean) / static_cast<double>(f.time)));
        out.evidence =
            fmt::format("V4-Flash at batch {}{}: {:.3f} MB and {:.3f} GFLOP for {}, bound by {}", goal_.batch,
                        ranks > 1 ? fmt::format(" over {} ranks", ranks) : "", f.bytes / 1e6, f.flops / 1e9,
                        attention ? "640 rows of KV" : "the experts of one layer", f.by_bytes ? "bytes" : "operations");
        out.advice = attention ? "read KV once for all heads, use tensor cores, split over rows"
                               : "read each expert once, in its stored format";
        out.rows = {i};
        out.ceiling = r.total;
        out.gain = r.total - f.time * r.calls;
        add(std::move(out));
        break;
      }
    }
  }

  void goal() {
    if (goal_.tokens_per_second <= 0) return;
    if (steps_.steps.empty()) {
      add({"target",
           fmt::format("what {:.0f} tokens/s take cannot be told: no decode steps were found", goal_.tokens_per_second),
           "neither annotations, nor graph launches, nor a repeating sequence of kernels mark steps",
           "give a trace of several decode steps, or one with step annotations"});
      return;
    }
    const double needed = std::min(1e18, static_cast<double>(goal_.batch) / goal_.tokens_per_second * 1e9);
    const double factor = static_cast<double>(steps_.median) / needed;
    Finding f;
    f.id = "target";
    const double now = static_cast<double>(goal_.batch) / static_cast<double>(steps_.median) * 1e9;
    f.title = fmt::format(
        "{:.0f} tokens/s at batch {} need a step of {}; the step takes {} ({:.0f} tokens/s): ", goal_.tokens_per_second,
        goal_.batch, time_text(static_cast<Ns>(needed)), time_text(steps_.median), now);
    f.title += factor <= 1 ? "the target is met" : fmt::format("{:.1f} times faster", factor);
    Ns gains = 0;
    for (const Finding& other : out_.findings) gains = std::max(gains, other.gain);
    f.evidence = fmt::format("the largest single finding gives at most {:.2f}x", out_.speedup(gains));
    std::vector<const CategoryRow*> rows;
    for (const CategoryRow& r : categories_.rows) rows.push_back(&r);
    Ns removed = 0;
    std::string what;
    for (const CategoryRow* r : rows) {
      if (factor <= 1 || out_.speedup(removed) >= factor) break;
      removed += r->total;
      what += (what.empty() ? "" : "; ") + categories_.categories[r->category].label;
    }
    if (factor > 1)
      f.advice = out_.speedup(removed) >= factor
                     ? fmt::format("even at no cost at all, these would have to go: {}", what)
                     : "no kernel work could be saved to reach it: the gaps and the number of kernels must shrink too, "
                       "or several "
                       "tokens must come from one step (speculation)";
    else
      f.advice = "nothing is needed";
    add(std::move(f));
  }

  const Trace& trace_;
  const Summary& summary_;
  const Ranking& ranking_;
  const CategoryTable& categories_;
  const StepAnalysis& steps_;
  Goal goal_;
  SavingBound saving_;
  Stretches stretches_;
  Diagnosis out_;
};

}  // namespace

double Diagnosis::speedup(Ns saved) const {
  const Ns rest = base - std::min(saved, base);
  return rest <= 0 ? 1e9 : static_cast<double>(base) / static_cast<double>(rest);
}

Diagnosis diagnose(const Trace& trace, const Summary& summary, const Ranking& ranking, const CategoryTable& categories,
                   const StepAnalysis& steps, const Goal& goal) {
  return Diagnoser(trace, summary, ranking, categories, steps, goal).run();
}

}  // namespace fathom::trace
