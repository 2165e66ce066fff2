#include "doctor/verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>

#include "base/error.h"
#include "trace/names.h"
#include "trace/occupancy.h"

namespace fathom::doctor {
namespace {

enum PartIndex : size_t { attention, experts, dense, glue, other, communication, launch_gaps, host_idle, part_count };

constexpr std::array<std::pair<const char*, const char*>, part_count> part_names{{
    {"attention", "attention"},
    {"experts", "experts"},
    {"dense", "dense products"},
    {"glue", "glue"},
    {"other", "other work"},
    {"communication", "communication"},
    {"launch_gaps", "launch gaps"},
    {"host_idle", "host idle"},
}};

PartIndex part_of(const trace::Category& category) {
  static const std::map<std::string, PartIndex> parts{
      {"attention", attention}, {"indexer", attention}, {"moe_gemm", experts},
      {"moe_routing", experts}, {"dense_gemm", dense},  {"communication", communication},
      {"sampling", other},      {"memcpy", other},      {"other", other},
  };
  if (const auto at = parts.find(category.id); at != parts.end()) return at->second;
  return category.glue ? glue : other;
}

std::string time_text(double seconds) {
  const double ms = seconds * 1e3;
  if (ms >= 1000) return fmt::format("{:.2f} s", seconds);
  if (ms >= 0.1) return fmt::format("{:.{}f} ms", ms, ms >= 100 ? 0 : ms >= 10 ? 1 : 2);
  return fmt::format("{:.1f} us", ms * 1e3);
}

/// Divides stretches of a device's time into parts.
class Divider {
 public:
  explicit Divider(const trace::Analysis& a) : trace_(*a.trace) {
    for (const trace::KernelRow& r : a.ranking.rows)
      parts_[{r.name, r.kind}] = part_of(a.categories.categories[r.category]);
  }

  /// The events [begin, end) from `from` to `to`; gaps in front of an event up to number `inside` are launch gaps, the
  /// others, and those longer than `longest`, are host idle.
  void add(size_t begin, size_t end, trace::Ns from, trace::Ns to, size_t inside, trace::Ns longest) {
    trace::Ns reach = from, reach_work = from;
    trace::Ns all = 0, work = 0;
    for (size_t i = begin; i < end; ++i) {
      const trace::GpuEvent& e = trace_.events[i];
      const trace::Ns last = std::min(e.end(), to);
      if (e.start > reach && reach < to) {
        const trace::Ns gap = std::min(e.start, to) - reach;
        times_[i < inside && gap <= longest ? launch_gaps : host_idle] += gap;
      }
      all += std::max<trace::Ns>(0, last - std::max(reach, e.start));
      reach = std::max(reach, last);
      const PartIndex part = of(e);
      if (part == communication) continue;
      const trace::Ns own = std::max<trace::Ns>(0, last - std::max(reach_work, e.start));
      times_[part] += own, work += own;
      reach_work = std::max(reach_work, last);
    }
    times_[communication] += all - work;
    if (to > reach) times_[host_idle] += to - reach;
  }

  PartIndex of(const trace::GpuEvent& e) const {
    const auto at = parts_.find({e.name, e.kind});
    return at == parts_.end() ? other : at->second;
  }

  trace::Ns time(size_t part) const { return times_[part]; }

 private:
  const trace::Trace& trace_;
  std::map<std::pair<trace::NameId, trace::WorkKind>, PartIndex> parts_;
  std::array<trace::Ns, part_count> times_{};
};

/// Cause and remedy of one part.
class Explainer {
 public:
  Explainer(const trace::Analysis& a, const Verdict& v) : a_(a), v_(v) {}

  void explain(PartIndex index, Part& p) const {
    if (p.share < 0.01) {
      p.cause = p.seconds > 0 ? "under 1 % of the time" : "none";
      return;
    }
    if (from_findings(index, p)) return;
    const std::string largest = largest_kernel(index);
    const bool cpu = a_.trace->cpu_work;
    if (index == launch_gaps) {
      p.cause = "gaps between pieces of work inside steps";
      p.remedy = cpu ? "fewer and larger operations" : "CUDA graphs, fewer kernels, dependent launch";
    } else if (index == host_idle) {
      p.cause = "between steps the device waits for the host (scheduling, sampling, sending)";
      p.remedy = "prepare the next step while the present one runs";
    } else if (p.bound > 0 && p.seconds < 1.6 * p.bound) {
      p.cause =
          fmt::format("near its bound ({:.2g} times): the bytes and operations that it must have", p.seconds / p.bound);
      p.remedy = "only fewer bytes help: a smaller format, a larger batch for the same weights, more bandwidth";
    } else if (p.bound > 0) {
      p.cause = fmt::format("{:.0f} times its bound; nothing in the trace says why; {}", p.seconds / p.bound, largest);
      p.remedy = own() ? "fathom kernels --op NAME compares the operation with its floor on this machine"
                       : "measure that kernel alone against its bytes (ncu: memory throughput, tensor pipe)";
    } else {
      p.cause = largest;
      p.remedy = index == glue ? "fuse it into the products before or behind it"
                               : "give --model and --gpu for its bound; fathom trace ranks the kernels";
    }
  }

 private:
  bool own() const { return a_.trace->producer == trace::Producer::fathom; }
  PartIndex part(const trace::KernelRow& r) const { return part_of(a_.categories.categories[r.category]); }
  std::string name(const trace::KernelRow& r) const {
    return printable(trace::brief_name(a_.trace->names.text(r.name)), 80);
  }

  std::string largest_kernel(PartIndex index) const {
    for (const trace::KernelRow& r : a_.ranking.rows)
      if (part(r) == index)
        return fmt::format("largest: {}, {} calls of {}", name(r), r.calls, time_text(r.mean() * 1e-9));
    return "no single kernel";
  }

  /// What one finding means for its first kernel of this part.
  std::string meaning(const trace::Finding& f, const trace::KernelRow& r) const {
    const trace::LaunchShape& s = a_.trace->shapes[trace::index(r.shape)];
    const std::string grid = fmt::format("grid {}x{}x{}", s.grid[0], s.grid[1], s.grid[2]);
    if (f.id == "few_blocks") {
      const int sms = a_.trace->devices[trace::index(a_.steps.device)].sm_count;
      return fmt::format("{} has {} blocks ({}) for {} SMs", name(r), s.blocks(), grid, sms);
    }
    if (f.id == "kv_reread")
      return fmt::format("{} reads the KV that all heads share once for each head ({})", name(r), grid);
    if (f.id == "simt_gemm") return fmt::format("{} multiplies without tensor cores", name(r));
    return f.title;
  }

  bool from_findings(PartIndex index, Part& p) const {
    static const std::map<std::string, PartIndex> whole{{"glue", glue},        {"launch_bound", launch_gaps},
                                                        {"gaps", launch_gaps}, {"communication", communication},
                                                        {"copies", other},     {"between_steps", host_idle}};
    for (const trace::Finding& f : a_.diagnosis.findings) {  // largest gain first
      std::string text;
      if (const auto at = whole.find(f.id); at != whole.end()) {
        if (at->second == index) text = f.title;
      } else if (f.id == "few_blocks" || f.id == "kv_reread" || f.id == "simt_gemm") {
        for (const size_t row : f.rows)
          if (part(a_.ranking.rows[row]) == index && a_.ranking.rows[row].share >= 0.005) {
            text = meaning(f, a_.ranking.rows[row]);
            break;
          }
      }
      if (text.empty()) continue;
      p.cause += (p.cause.empty() ? "" : "; ") + text;
      if (p.remedy.empty()) p.remedy = f.advice;
    }
    return !p.cause.empty();
  }

  const trace::Analysis& a_;
  const Verdict& v_;
};

void add_bounds(Verdict& v, const BoundQuestion& q) {
  v.bound = plan::bound(q.model, q.devices, q.batch, q.context);
  v.bound_of = fmt::format("{} on {} x {}, batch {:g}, context {:g}", printable(q.model.name), q.devices.count,
                           printable(q.devices.gpu.name), q.batch, q.context);
  if (v.steps == 0) return;
  const plan::StepBound& b = *v.bound;
  const plan::Gpu& gpu = q.devices.gpu;
  const double products = gpu.fp8 > 0 ? gpu.fp8 : gpu.bf16, count = q.devices.count;
  const ModelConfig& c = q.model.config;
  const double expert_flops =
      b.tokens * q.model.layers() * c.experts_per_token * 6.0 * c.hidden_size * c.moe_intermediate_size;
  const auto bound = [&](double bytes, double flops, double rate) {
    return std::max(bytes / gpu.bandwidth, flops / rate / count);
  };
  v.parts[attention].bound = bound(b.cache_bytes, b.attention_flops, gpu.bf16);
  v.parts[experts].bound = bound(b.device_expert_bytes, expert_flops, products);
  v.parts[dense].bound =
      bound(b.device_bytes - b.device_expert_bytes - b.cache_bytes, b.product_flops - expert_flops, products);
  v.parts[communication].bound = b.link_time;
  for (const PartIndex free : {glue, other, launch_gaps, host_idle}) v.parts[free].bound = 0;
  v.tokens_per_second = q.batch / v.seconds;
}

}  // namespace

Verdict judge(const trace::Analysis& a, const std::optional<BoundQuestion>& question) {
  Verdict v;
  const trace::Trace& t = *a.trace;
  v.file = printable(t.path.string(), 300);
  v.devices = static_cast<int>(a.summary.devices.size());
  for (const auto& [id, label] : part_names) v.parts.push_back({id, label});
  if (a.summary.devices.empty()) return v;
  const trace::Device& device = t.devices[trace::index(a.steps.device)];
  v.device = t.cpu_work ? "CPU" : device.name.empty() ? "an unnamed device" : printable(device.name);

  Divider divider(a);
  trace::Ns whole = 0;
  const auto& steps = a.steps.steps;
  constexpr trace::Ns no_limit = std::numeric_limits<trace::Ns>::max();
  for (size_t s = 0; s < steps.size(); ++s) {
    if (steps[s].duration() > 2 * a.steps.median) {
      ++v.left_out;
      continue;
    }
    const bool last = s + 1 == steps.size();
    const size_t end = last ? steps[s].finish : std::max(steps[s].finish, steps[s + 1].begin);
    const trace::Ns to = last ? steps[s].end : std::max(steps[s].start, steps[s + 1].start);
    divider.add(steps[s].begin, end, steps[s].start, to, steps[s].finish, no_limit);
    whole += to - steps[s].start;
    ++v.steps;
  }
  if (v.steps == 0) {
    for (const trace::DeviceSummary& d : a.summary.devices) {
      if (d.device != a.steps.device) continue;
      size_t begin = 0;
      while (t.device_of(t.events[begin]) != d.device) ++begin;
      constexpr trace::Ns launch_gap_most = 1'000'000;  // as the diagnosis has it where there are no steps
      divider.add(begin, begin + static_cast<size_t>(d.events), d.first, d.last, SIZE_MAX, launch_gap_most);
      whole += d.span();
    }
  }
  if (whole <= 0) return v;
  const double per = static_cast<double>(std::max<size_t>(v.steps, 1));
  v.seconds = static_cast<double>(whole) * 1e-9 / per;
  for (size_t p = 0; p < part_count; ++p) {
    v.parts[p].seconds = static_cast<double>(divider.time(p)) * 1e-9 / per;
    v.parts[p].share = static_cast<double>(divider.time(p)) / static_cast<double>(whole);
  }
  if (question) add_bounds(v, *question);
  const Explainer explainer(a, v);
  double loss = -1;
  for (size_t p = 0; p < part_count; ++p) {
    explainer.explain(static_cast<PartIndex>(p), v.parts[p]);
    const double lost = v.parts[p].seconds - std::max(0.0, v.parts[p].bound);
    if (lost > loss) loss = lost, v.largest = v.parts[p].label;
  }
  return v;
}

std::string verdict_sentence(const Verdict& v) {
  if (v.seconds <= 0) return "the trace holds no work of a device: nothing to judge";
  const auto counted = [](size_t n) { return fmt::format("{} step{}", n, n == 1 ? "" : "s"); };
  std::string out = v.steps > 0
                        ? fmt::format("one step takes {} ({}{})", time_text(v.seconds), counted(v.steps),
                                      v.left_out > 0 ? fmt::format("; {} more over twice the median left out as "
                                                                   "prefill",
                                                                   v.left_out)
                                                     : "")
                        : fmt::format("the trace covers {} and shows no steps", time_text(v.seconds));
  if (v.bound && v.steps > 0)
    out += fmt::format("; bound {} ({}): {:.2g} % of it is reached", time_text(v.bound->time()), v.bound->binds(),
                       100 * v.bound->time() / v.seconds);
  return out + fmt::format("; the largest loss is {}", v.largest);
}

}  // namespace fathom::doctor
