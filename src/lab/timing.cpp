#include "lab/timing.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "base/error.h"
#include "base/threads.h"
#include "lab/cpu_rates.h"

namespace fathom::lab {

double Ceilings::rate(Unit unit) const {
  if (unit == Unit::fp8 && fp8 > 0) return fp8;
  if (unit != Unit::fp32 && bf16 > 0) return bf16;
  return fp32;
}

namespace {

Ceilings measure(ops::Backend backend) {
  Ceilings c;
  if (backend == ops::Backend::cpu) {
    const CpuRates r = measure_cpu_rates();
    c.copy = r.copy, c.fp32 = r.fp32;
    c.note = fmt::format("{} threads, memcpy and vector FMA", thread_count());
    return c;
  }
  const gpu::Rates r = gpu::measure_rates();
  c.copy = r.copy, c.fp32 = r.fp32, c.fp8 = r.fp8_mma;
  c.bf16 = std::max(r.bf16_mma, r.bf16_wgmma);
  c.note = fmt::format("bf16: mma.sync {:.0f} TFLOP/s{}; fp8: mma.sync", r.bf16_mma * 1e-12,
                       r.bf16_wgmma > 0 ? fmt::format(", wgmma {:.0f}", r.bf16_wgmma * 1e-12) : "");
  return c;
}

/// Copies of the case that together exceed three times the last-level cache, as far as memory allows.
int64_t copies_for(const Case& c, const Target& target, Heat heat, const Budget& budget, bool& beyond) {
  if (heat == Heat::warm) return 1;
  int64_t bytes = 0;
  for (const Buffer& b : c.buffers) bytes += static_cast<int64_t>(b.bytes.size()) + 512;
  int64_t allowed = budget.memory;
  if (target.device.backend == ops::Backend::cuda)
    allowed = std::max(allowed, static_cast<int64_t>(gpu::free_memory() / 4));
  const double touched = std::max(1.0, c.cost.bytes);
  const int64_t wanted = static_cast<int64_t>(3.0 * static_cast<double>(target.device.l2_bytes) / touched) + 1;
  const int64_t copies = std::clamp<int64_t>(std::min(wanted, allowed / std::max<int64_t>(1, bytes)), 1, 512);
  beyond = copies >= wanted;
  return copies;
}

Timing summary(std::vector<double> samples) {
  std::ranges::sort(samples);
  Timing t;
  const auto at = [&](double q) {
    return samples[static_cast<size_t>(q * static_cast<double>(samples.size() - 1) + 0.5)];
  };
  t.seconds = at(0.5), t.fastest = samples.front(), t.samples = static_cast<int64_t>(samples.size());
  t.spread = t.seconds > 0 ? (at(0.9) - at(0.1)) / t.seconds : 0;
  return t;
}

using Run = std::function<void(size_t copy, void* stream)>;

std::vector<double> gpu_samples(const Run& run, size_t copies, double seconds) {
  const size_t launches = std::max<size_t>(copies, 16);
  gpu::Graph graph([&](void* stream) {
    for (size_t i = 0; i < launches; ++i) run(i % copies, stream);
  });
  double spent = graph.replay() * 1e-3;  // the first replay warms up
  std::vector<double> samples;
  while (samples.size() < 7 || (spent < seconds && samples.size() < 200)) {
    const double replay = graph.replay() * 1e-3;
    spent += replay;
    samples.push_back(replay / static_cast<double>(launches));
  }
  return samples;
}

std::vector<double> cpu_samples(const Run& run, size_t copies, double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  const auto begin = Clock::now();
  run(0, nullptr);
  // Calls shorter than 50 us are timed in groups, so that reading the clock does not count.
  const double once = since(begin);
  const size_t group = once < 50e-6 ? static_cast<size_t>(50e-6 / std::max(once, 1e-7)) + 1 : 1;
  std::vector<double> samples;
  size_t next = 1;
  while (samples.size() < 3 || (since(begin) < seconds && samples.size() < 1000) || next < copies) {
    const auto start = Clock::now();
    for (size_t i = 0; i < group; ++i) run(next++ % copies, nullptr);
    samples.push_back(since(start) / static_cast<double>(group));
    if (since(begin) > 4 * seconds && samples.size() >= 3) break;
  }
  return samples;
}

}  // namespace

const Ceilings& ceilings(ops::Backend backend) {
  static std::optional<Ceilings> cpu, gpu;
  auto& slot = backend == ops::Backend::cpu ? cpu : gpu;
  if (!slot) slot = measure(backend);
  return *slot;
}

double floor_seconds(const Cost& cost, const Ceilings& ceilings) {
  return std::max(cost.bytes / ceilings.copy, cost.flops / ceilings.rate(cost.unit));
}

Timing time_case(const Case& c, const Implementation& variant, const Target& target, Heat heat, const Budget& budget,
                 Contents* judged) {
  bool beyond = true;
  const auto copies = static_cast<size_t>(copies_for(c, target, heat, budget, beyond));
  std::vector<Placement> places;
  for (size_t i = 0; i < copies; ++i) {
    places.emplace_back(c, variant.backend, Guards::none);
    if (i == 0)
      places[0].load(c);
    else
      places[i].load_from(places[0]);
  }
  const Workspace workspace(variant.backend, variant.workspace(places[0].addresses(), target.device));
  const Run run = [&](size_t copy, void* stream) {
    variant.run(places[copy].addresses(), {target.device, workspace.data(), stream});
  };
  // One run of each copy from fresh inputs is what the outputs are judged by (in-out buffers drift afterwards).
  if (variant.backend == ops::Backend::cuda) {
    gpu::run_on_stream([&](void* stream) {
      for (size_t i = 0; i < copies; ++i) run(i, stream);
    });
  } else {
    for (size_t i : {size_t{0}, copies - 1})
      if (i == 0 || copies > 1) run(i, nullptr);
  }
  Contents first = places.front().fetch();
  if (copies > 1 && places.back().fetch() != first)
    fail("{} {}: {}: two copies of the same inputs gave different results", c.op, variant.name, c.shape);
  if (judged) *judged = std::move(first);

  Timing t = summary(variant.backend == ops::Backend::cuda ? gpu_samples(run, copies, budget.seconds)
                                                           : cpu_samples(run, copies, budget.seconds));
  t.copies = static_cast<int64_t>(copies);
  t.beyond_cache = beyond;
  return t;
}

}  // namespace fathom::lab
