#include "lab/session.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/interrupt.h"

namespace fathom::lab {

namespace {

constexpr double reference_flops = 1.5e9;  // more would take the reference many seconds
constexpr int64_t kilobyte = 1024, megabyte = 1024 * kilobyte;

bool named(const std::vector<std::string>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& n : names) text += (text.empty() ? "" : ", ") + n;
  return text;
}

}  // namespace

const std::vector<KnownGpu>& known_gpus() {
  static const std::vector<KnownGpu> gpus = {
      {"a100", 80, 108, 163 * kilobyte, 40 * megabyte},    {"rtx4090", 89, 128, 99 * kilobyte, 72 * megabyte},
      {"l40s", 89, 142, 99 * kilobyte, 96 * megabyte},     {"h100", 90, 132, 227 * kilobyte, 50 * megabyte},
      {"h200", 90, 132, 227 * kilobyte, 60 * megabyte},    {"rtxpro6000", 120, 188, 99 * kilobyte, 128 * megabyte},
      {"rtx5090", 120, 170, 99 * kilobyte, 96 * megabyte}, {"gb10", 121, 48, 99 * kilobyte, 24 * megabyte},
  };
  return gpus;
}

Session::Session(Options options) : options_(std::move(options)), cpu_(cpu_target()) {
  if (options_.ops.empty())
    for (const OpCases& op : all_ops()) ops_.push_back(&op);
  else
    for (const auto& name : options_.ops) ops_.push_back(&find_op(name));
  cpu_.guards = options_.guards;
  const std::string why = gpu::unavailable();
  has_gpu_ = why.empty();
  if (has_gpu_) gpu_ = gpu_target(), gpu_.guards = options_.guards;

  std::vector<std::string> known, shapes;
  bool any = false;
  for (const OpCases* op : ops_) {
    for (std::string_view s : op->shapes) shapes.emplace_back(s);
    for (const auto& v : op->variants()) {
      if (!named(known, v.name)) known.emplace_back(v.name);
      if (named(options_.variants, v.name) && v.backend == ops::Backend::cuda && !has_gpu_)
        fail("{} {} needs a GPU: {}", op->op, v.name, why);
      any = any || options_.variants.empty() || named(options_.variants, v.name);
    }
  }
  for (const auto& name : options_.variants)
    if (!named(known, name))
      fail("there is no variant {} of these operations; known: {}", printable(name), joined(known));
  for (const auto& name : options_.shapes)
    if (!named(shapes, name))
      fail("there is no shape {} of these operations; known: {}", printable(name), joined(shapes));
  if (!any) fail("these operations have no such variant");
  if (options_.as.empty()) return;
  const auto as = std::ranges::find(known_gpus(), options_.as, &KnownGpu::name);
  if (as == known_gpus().end()) {
    std::vector<std::string> names;
    for (const auto& g : known_gpus()) names.emplace_back(g.name);
    fail("no GPU {} to plan as; known: {}", printable(options_.as), joined(names));
  }
  if (!has_gpu_) fail("planning as {} needs a GPU to run on: {}", options_.as, why);
  pretended_ = {ops::Backend::cuda, as->compute_capability, as->sm_count, as->shared_bytes, as->l2_bytes};
  gpu_.device.compute_capability = std::min(gpu_.device.compute_capability, as->compute_capability);
  // Blocks of some sm_90 kernels wait for each other and must all be there at once; attention's wait for older
  // neighbours alone.
  const bool attention_alone = ops_.size() == 1 && ops_.front()->op == "sparse_attention";
  if (!attention_alone && gpu_.device.compute_capability == 90 && as->sm_count > gpu_.device.sm_count)
    fail("planning as {}, which has {} multiprocessors, on {} works for --op sparse_attention alone", options_.as,
         as->sm_count, gpu_.device.sm_count);
  gpu_.device.sm_count = as->sm_count;
  gpu_.device.shared_bytes = std::min(gpu_.device.shared_bytes, as->shared_bytes);
}

bool Session::can_run(const Case& c, const Implementation& variant) const {
  if (!variant.can_run(c.host_addresses(), target(variant).device)) return false;
  return variant.backend == ops::Backend::cpu || options_.as.empty() || variant.can_run(c.host_addresses(), pretended_);
}

std::vector<std::string> Session::chosen(const OpCases& op) const {
  std::vector<std::string> names;
  for (const auto& v : op.variants()) {
    if (!options_.variants.empty() && !named(options_.variants, v.name)) continue;
    if (v.backend == ops::Backend::cuda && !has_gpu_) continue;
    names.emplace_back(v.name);
  }
  return names;
}

const Target& Session::target(const Implementation& variant) const {
  return variant.backend == ops::Backend::cpu ? cpu_ : gpu_;
}

void Session::check(const std::function<void(const CheckRow&)>& done) {
  for (const OpCases* op : ops_) {
    std::vector<CheckRow> rows;
    for (const auto& name : chosen(*op)) rows.push_back({std::string(op->op), name});
    for (int64_t i = 0; i < options_.cases && !rows.empty() && !interrupted(); ++i) {
      const uint64_t seed = options_.seed + static_cast<uint64_t>(i);
      const Case c = op->random(seed);
      std::optional<Expected> expected;
      for (CheckRow& row : rows) {
        const Implementation& variant = *c.find(row.variant);
        if (!can_run(c, variant)) {
          ++row.unsupported;
          continue;
        }
        if (row.failed >= 3) continue;
        if (!expected) expected = expect(c);
        Verdict v;
        try {
          v = lab::check(c, variant, *expected, target(variant));
        } catch (const gpu::Failure& e) {
          throw gpu::Failure(fmt::format("{} {}, seed {}, {}: {}", row.op, row.variant, seed, c.shape, e.what()));
        }
        ++(v.ok ? row.passed : row.failed);
        row.relative_l2 = std::max(row.relative_l2, v.relative_l2);
        row.truth_l2 = std::max(row.truth_l2, v.truth_l2);
        row.worst_ulp = std::max(row.worst_ulp, v.worst_ulp);
        if (!v.ok) row.failures.push_back(fmt::format("seed {}, {}: {}", seed, c.shape, v.message));
      }
    }
    for (const CheckRow& row : rows) done(row);
  }
}

void Session::time(const std::function<void(const TimingRow&)>& done) {
  for (const OpCases* op : ops_) {
    std::vector<std::string> names = chosen(*op);
    if (!named(options_.variants, "ref")) std::erase(names, "ref");
    if (names.empty()) continue;
    std::vector<int64_t> batches = options_.batches;
    if (batches.empty()) batches = has_gpu_ ? std::vector<int64_t>{1, 8, 64} : std::vector<int64_t>{1};
    for (std::string_view shape : op->shapes) {
      if (!options_.shapes.empty() && !named(options_.shapes, shape)) continue;
      for (int64_t batch : batches)
        if (!interrupted()) time_shape(*op, shape, batch, names, done);
    }
  }
}

void Session::time_shape(const OpCases& op, std::string_view shape, int64_t batch,
                         const std::vector<std::string>& names, const std::function<void(const TimingRow&)>& done) {
  const Case c = op.timed(shape, batch, options_.seed);
  std::optional<Expected> expected;
  if (c.cost.flops <= reference_flops) expected = expect(c);
  for (const auto& name : names) {
    const Implementation& variant = *c.find(name);
    if (!can_run(c, variant)) continue;
    for (Heat heat : {Heat::cold, Heat::warm}) {
      TimingRow row{c.op, name, std::string(shape), batch, c.shape, heat, {}, c.cost, 0, "", ""};
      row.floor = floor_seconds(c.cost, ceilings(variant.backend));
      try {
        Contents got;
        Budget budget;
        budget.seconds = options_.seconds;
        row.timing = time_case(c, variant, target(variant), heat, budget, &got);
        row.judged = expected ? "reference" : "copies agree";
        if (expected)
          if (const Verdict v = judge(c, got, *expected); !v.ok) row.failure = v.message;
      } catch (const gpu::Failure& e) {
        throw gpu::Failure(fmt::format("{} {}, {}: {}", c.op, name, c.shape, e.what()));
      } catch (const Error& e) {
        row.failure = e.what();
      }
      done(row);
      if (!row.failure.empty()) break;
    }
  }
}

}  // namespace fathom::lab
