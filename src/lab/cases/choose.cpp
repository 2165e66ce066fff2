#include "ops/choose/choose.h"

#include <fmt/format.h>

#include <cstring>

#include "lab/cases/cases.h"
#include "lab/cases/common.h"

namespace fathom::lab {

namespace {

Case make(int64_t rows, const Strides& place, std::span<const ops::RowSampling> sampling, float spread, Rng& rng) {
  Case c;
  c.op = "choose";
  const int64_t vocabulary = place.columns;
  const auto logits = c.in<float>("logits", place.elements());
  fill_normal(logits.values, spread, rng);
  const auto how = c.in<std::byte>("sampling", rows * static_cast<int64_t>(sizeof(ops::RowSampling)));
  std::memcpy(how.values.data(), sampling.data(), how.values.size());
  const auto token = c.out<int32_t>("token", rows, Tolerance::by_property(), 1);
  const std::vector<ops::RowSampling> rules(sampling.begin(), sampling.end());
  c.properties.push_back([=](const Addresses& got, const Addresses& want) -> std::string {
    for (int64_t r = 0; r < rows; ++r) {
      const int32_t g = token.at(got)[r], w = token.at(want)[r];
      // A variant may leave rows of many candidates to its caller.
      if (g == ops::kRowNotDrawn && vocabulary > 2048 && rules[static_cast<size_t>(r)].filters()) continue;
      if (g != w) return fmt::format("token: row {}: got {}, want {}", r, g, w);
    }
    return "";
  });
  c.cost = {static_cast<double>(rows * (4 * vocabulary + 4)), 0, Unit::fp32};
  c.shape = fmt::format("R={} V={}", rows, vocabulary);
  const auto narrow = [](ops::ChooseArgs a, int64_t r) {
    a.logits = a.logits.rows(r, 1), a.sampling = a.sampling.rows(r, 1), a.token = a.token.rows(r, 1);
    return a;
  };
  c.bind<ops::ChooseArgs>(
      ops::choose_variants(),
      [=](const Addresses& a) {
        ops::ChooseArgs args;
        args.logits = view2<const float>(logits.at(a), place);
        args.sampling = View<const ops::RowSampling, 1>(reinterpret_cast<const ops::RowSampling*>(how.at(a)), rows);
        args.token = View<int32_t, 1>(token.at(a), rows);
        return args;
      },
      std::function<ops::ChooseArgs(ops::ChooseArgs, int64_t)>(narrow), rows);
  return c;
}

ops::RowSampling some_sampling(Rng& rng) {
  ops::RowSampling how;
  if (rng.chance(0.2)) return how;
  how.scale = 1.4426950f / rng.uniform(0.1f, 2);
  how.random = rng.next() >> 11;
  if (rng.chance(0.4)) how.top_k = static_cast<int32_t>(rng.between(1, 100));
  if (rng.chance(0.4)) how.top_p = static_cast<double>(rng.uniform(0.01f, 1));
  if (rng.chance(0.3)) how.min_p = static_cast<double>(rng.uniform(0, 0.5f));
  return how;
}

}  // namespace

OpCases choose_cases() {
  const auto random = [](uint64_t seed) {
    Rng rng(seed);
    const bool many = rng.chance(0.1);
    std::vector<ops::RowSampling> sampling(static_cast<size_t>(many ? rng.between(20, 200) : rng.between(1, 9)));
    for (auto& how : sampling) how = some_sampling(rng);
    const auto rows = static_cast<int64_t>(sampling.size());
    const int64_t vocabulary = many || rng.chance(0.7) ? rng.between(1, 2048) : rng.between(2049, 140000);
    return make(rows, strided(rows, vocabulary, 4, rng), sampling, rng.pick({0.1f, 2.0f, 6.0f}), rng);
  };
  const auto timed = [](std::string_view scenario, int64_t batch, uint64_t seed) {
    Rng rng(seed);
    ops::RowSampling how;
    if (scenario != "largest") how.scale = 1.4426950f;
    const bool all = scenario == "all";
    if (scenario == "top-k" || all) how.top_k = 50;
    if (scenario == "top-p" || all) how.top_p = 0.95;
    if (scenario == "min-p" || all) how.min_p = 0.05;
    std::vector<ops::RowSampling> sampling(static_cast<size_t>(batch), how);
    for (auto& one : sampling) one.random = rng.next() >> 11;
    return make(batch, dense(batch, 129280), sampling, 3, rng);
  };
  return {"choose",
          "the next token of each row of logits",
          [] { return names_of(ops::choose_variants()); },
          random,
          {"largest", "temperature", "top-k", "top-p", "min-p", "all"},
          timed};
}

}  // namespace fathom::lab
