#include "ops/head/head.h"

#include <fmt/format.h>

#include <algorithm>

#include "lab/cases/cases.h"
#include "lab/cases/common.h"

namespace fathom::lab {

namespace {

Case make(int64_t tokens, int64_t wanted, int64_t d, int64_t vocabulary, bool ragged, Rng& rng) {
  Case c;
  c.op = "head";
  const Strides streams = ragged ? strided(4 * tokens, d, 8, rng) : dense(4 * tokens, d);
  const auto x = c.in<bf16>("streams", streams.elements());
  fill_normal(x.values, std::exp2(rng.uniform(-2, 3)), rng);
  const auto rows = c.in<int32_t>("rows", wanted);
  for (int32_t& r : rows.values) r = static_cast<int32_t>(rng.below(tokens));
  const auto fn = c.in<float>("fn", 4 * 4 * d), scale = c.in<float>("scale", 1), base = c.in<float>("base", 4);
  fill_normal(fn.values, 0.5f / std::sqrt(static_cast<float>(d)), rng);
  scale.values[0] = rng.uniform(0.2f, 2);
  fill_normal(base.values, 1.0f, rng);
  const auto norm = c.in<bf16>("norm", d), weight = c.in<bf16>("weight", vocabulary * d);
  fill_norm_weight(norm.values, rng);
  fill_normal(weight.values, 0.02f, rng);
  const auto hidden = c.out<bf16>("hidden", wanted * d, Tolerance::bf16_ulp(1, 1e-5), d);
  const auto normed = c.out<bf16>("normed", wanted * d, Tolerance::bf16_ulp(2, 2e-5), d);
  const auto logits = c.out<float>("logits", wanted * vocabulary, Tolerance::relative_l2(1e-3), vocabulary);
  const double r = static_cast<double>(wanted), w = static_cast<double>(d), v = static_cast<double>(vocabulary);
  c.cost = {2 * v * w + 64 * w + r * (8 * w + 4 * w + 4 * v), 2 * r * v * w, Unit::bf16};
  c.shape = fmt::format("T={} rows={} d={} V={}", tokens, wanted, d, vocabulary);
  const auto build = [=](const Addresses& a) {
    ops::HeadArgs args;
    args.streams = view3<const bf16>(x.at(a), tokens, 4, streams);
    args.rows = View<const int32_t, 1>(rows.at(a), wanted);
    args.fn = View<const float, 2>(fn.at(a), int64_t{4}, 4 * d);
    args.scale = View<const float, 1>(scale.at(a), 1);
    args.base = View<const float, 1>(base.at(a), 4);
    args.norm = View<const bf16, 1>(norm.at(a), d);
    args.weight = View<const bf16, 2>(weight.at(a), vocabulary, d);
    args.hidden = View<bf16, 2>(hidden.at(a), wanted, d);
    args.normed = View<bf16, 2>(normed.at(a), wanted, d);
    args.logits = View<float, 2>(logits.at(a), wanted, vocabulary);
    return args;
  };
  const auto token = [](ops::HeadArgs args, int64_t t) {
    args.rows = args.rows.rows(t, 1), args.hidden = args.hidden.rows(t, 1), args.normed = args.normed.rows(t, 1);
    args.logits = args.logits.rows(t, 1);
    return args;
  };
  c.bind<ops::HeadArgs>(ops::head_variants(), build,
                        ragged ? std::function<ops::HeadArgs(ops::HeadArgs, int64_t)>(token) : nullptr, wanted);
  return c;
}

}  // namespace

OpCases head_cases() {
  const auto random = [](uint64_t seed) {
    Rng rng(seed);
    const int64_t tokens = some_tokens(rng);
    return make(tokens, rng.between(1, std::min<int64_t>(tokens, 17)), 8 * rng.between(1, 64), rng.between(1, 700),
                true, rng);
  };
  const auto timed = [](std::string_view, int64_t batch, uint64_t seed) {
    Rng rng(seed);
    return make(batch, batch, 4096, 129280, false, rng);
  };
  return {"head", "stream mix, norm, logits", [] { return names_of(ops::head_variants()); }, random, {"flash"}, timed};
}

}  // namespace fathom::lab
