#include "ops/query/query.h"

#include <fmt/format.h>

#include <algorithm>

#include "lab/cases/cases.h"
#include "lab/cases/common.h"

namespace fathom::lab {

namespace {

Case make(int64_t tokens, int64_t heads, bool bf16_steps, bool ragged, Rng& rng) {
  Case c;
  c.op = "query";
  const Strides q = ragged ? strided(tokens * heads, 512, 8, rng) : dense(tokens * heads, 512);
  // In bf16 steps the rounded mean may land one step away, which moves a whole head by one step more.
  const auto q_slot =
      c.inout<bf16>("q", q.elements(), Tolerance::bf16_ulp(bf16_steps ? 3 : 1, bf16_steps ? 4e-3 : 1e-5), q.stride);
  fill_normal(q_slot.values, std::exp2(rng.uniform(-4, 4)), rng);
  const auto position = c.in<int32_t>("position", tokens);
  for (int32_t& p : position.values) p = static_cast<int32_t>(rng.chance(0.2) ? rng.below(4) : rng.below(1048576));
  const auto freq = c.in<float>("rope_freq", 32);
  std::ranges::copy(rope_frequencies(rng.pick({10000.0, 160000.0})), freq.values.begin());
  c.cost = {static_cast<double>(tokens * heads) * 512 * 4 + static_cast<double>(tokens) * 4, 0, Unit::fp32};
  c.shape = fmt::format("T={} H={} {}", tokens, heads, bf16_steps ? "bf16 steps" : "fp32");
  const auto build = [=](const Addresses& a) {
    ops::QueryArgs args;
    args.q = view3<bf16>(q_slot.at(a), tokens, heads, q);
    args.position = View<const int32_t, 1>(position.at(a), tokens);
    args.rope_freq = View<const float, 1>(freq.at(a), 32);
    args.bf16_steps = bf16_steps;
    return args;
  };
  const auto token = [](ops::QueryArgs args, int64_t t) {
    args.q = args.q.rows(t, 1), args.position = args.position.rows(t, 1);
    return args;
  };
  c.bind<ops::QueryArgs>(ops::query_variants(), build, std::function<ops::QueryArgs(ops::QueryArgs, int64_t)>(token),
                         tokens);
  return c;
}

}  // namespace

OpCases query_cases() {
  const auto random = [](uint64_t seed) {
    Rng rng(seed);
    return make(some_tokens(rng), rng.pick({1, 4, 8, 16, 64}), rng.chance(0.6), true, rng);
  };
  const auto timed = [](std::string_view, int64_t batch, uint64_t seed) {
    Rng rng(seed);
    return make(batch, 64, true, false, rng);
  };
  return {"query",
          "per-head RMS and RoPE of the queries",
          [] { return names_of(ops::query_variants()); },
          random,
          {"heads64"},
          timed};
}

}  // namespace fathom::lab
