#include "ops/window_write/window_write.h"

#include <fmt/format.h>

#include <algorithm>

#include "lab/cases/cases.h"
#include "lab/cases/common.h"

namespace fathom::lab {

namespace {

using ops::RowFormat;

Case make(int64_t tokens, const PoolShape& pool, bool ragged, Rng& rng) {
  Case c;
  c.op = "window_write";
  const Strides kv = ragged ? strided(tokens, 512, 8, rng) : dense(tokens, 512);
  const auto kv_slot = c.in<bf16>("kv", kv.elements()), norm = c.in<bf16>("norm", 512);
  fill_normal(kv_slot.values, std::exp2(rng.uniform(-4, 4)), rng);
  fill_norm_weight(norm.values, rng);
  const auto position = c.in<int32_t>("position", tokens), slot = c.in<int32_t>("slot", tokens);
  for (int32_t& p : position.values) p = static_cast<int32_t>(rng.chance(0.2) ? rng.below(4) : rng.below(1048576));
  const auto rows = sample(pool.rows(), tokens, rng);
  for (int64_t t = 0; t < tokens; ++t)
    slot.values[static_cast<size_t>(t)] = ragged && rng.chance(0.15) ? -1 : rows[static_cast<size_t>(t)];
  const auto freq = c.in<float>("rope_freq", 32);
  std::ranges::copy(rope_frequencies(rng.pick({10000.0, 160000.0})), freq.values.begin());
  const auto data = c.inout<std::byte>("pool", pool.bytes(), Tolerance::by_property());
  if (ragged) c.align(data, 32);
  fill_bytes(data.values, rng);
  const std::vector<int32_t> slots(slot.values.begin(), slot.values.end());
  const auto bytes = static_cast<size_t>(pool.bytes());
  c.properties.push_back([=](const Addresses& got, const Addresses& want) {
    return pool_close("pool", kv_pool_write(pool), {data.at(got), bytes}, {data.at(want), bytes}, slots);
  });
  c.cost = {static_cast<double>(tokens) * (1024 + 584 + 8), 0, Unit::fp32};
  c.shape = fmt::format("T={} pages of {} {}", tokens, pool.page_rows, pool.format == RowFormat::v4 ? "v4" : "bf16");
  const auto build = [=](const Addresses& a) {
    ops::WindowWriteArgs args;
    args.kv = view2<const bf16>(kv_slot.at(a), kv);
    args.norm = View<const bf16, 1>(norm.at(a), 512);
    args.position = View<const int32_t, 1>(position.at(a), tokens);
    args.rope_freq = View<const float, 1>(freq.at(a), 32);
    args.slot = View<const int32_t, 1>(slot.at(a), tokens);
    args.pool = pool.at(data.at(a));
    args.format = pool.format;
    return args;
  };
  const auto token = [](ops::WindowWriteArgs args, int64_t t) {
    args.kv = args.kv.rows(t, 1), args.position = args.position.rows(t, 1), args.slot = args.slot.rows(t, 1);
    return args;
  };
  c.bind<ops::WindowWriteArgs>(ops::window_write_variants(), build,
                               std::function<ops::WindowWriteArgs(ops::WindowWriteArgs, int64_t)>(token), tokens);
  return c;
}

}  // namespace

OpCases window_write_cases() {
  const auto random = [](uint64_t seed) {
    Rng rng(seed);
    const int64_t tokens = some_tokens(rng);
    return make(
        tokens,
        some_pool(rng.chance(0.3) ? RowFormat::bf16 : RowFormat::v4, rng.pick({256, 64, 2, 1, 7}), tokens + 3, rng),
        true, rng);
  };
  const auto timed = [](std::string_view, int64_t batch, uint64_t seed) {
    Rng rng(seed);
    return make(batch, {RowFormat::v4, 256, batch, ops::page_bytes(RowFormat::v4, 256)}, false, rng);
  };
  return {"window_write",
          "KV row: norm, RoPE, fp8, page write",
          [] { return names_of(ops::window_write_variants()); },
          random,
          {"step"},
          timed};
}

}  // namespace fathom::lab
