#include "ops/quantize/quantize.h"

#include <fmt/format.h>

#include "lab/cases/cases.h"
#include "lab/cases/common.h"

namespace fathom::lab {

namespace {

Case make(int64_t tokens, int64_t k, bool with_norm, bool ragged, Rng& rng) {
  Case c;
  c.op = "quantize";
  const Strides x = ragged ? strided(tokens, k, 8, rng) : dense(tokens, k);
  const auto x_slot = c.in<bf16>("x", x.elements());
  for (int64_t t = 0; t < tokens; ++t) {
    // Rows of very different size; some groups all zero, where the scale is at its floor.
    fill_normal(x_slot.values.subspan(static_cast<size_t>(t * x.stride), static_cast<size_t>(k)),
                std::exp2(rng.uniform(-12, 8)), rng);
    if (rng.chance(0.1)) std::fill_n(x_slot.values.begin() + t * x.stride, 128, bf16{0});
  }
  Slot<bf16> norm;
  if (with_norm) norm = c.in<bf16>("norm", k), fill_norm_weight(norm.values, rng);
  // Without the norm the result is fixed to the bit; with it, the order of a sum moves a few near ties.
  const Tolerance tolerance = with_norm ? Tolerance::by_property() : Tolerance::exact();
  const auto codes = c.out<e4m3>("codes", tokens * k, tolerance, k);
  const auto scale = c.out<e8m0>("scale", tokens * (k / 128), tolerance, k / 128);
  if (with_norm)
    c.properties.push_back([=](const Addresses& got, const Addresses& want) {
      const auto value = [&](const Addresses& a, int64_t t, int64_t i) {
        return double{to_float(codes.at(a)[t * k + i])} * to_float(scale.at(a)[t * (k / 128) + i / 128]);
      };
      return decoded_close("codes", tokens, k, 0.01, 0.01, value, got, want);
    });
  c.cost = {static_cast<double>(tokens) * static_cast<double>(2 * k + k + k / 128) +
                (with_norm ? 2.0 * static_cast<double>(k) : 0),
            0, Unit::fp32};
  c.shape = fmt::format("T={} K={}{}", tokens, k, with_norm ? " norm" : "");
  const auto build = [=](const Addresses& a) {
    ops::QuantizeArgs args;
    args.x = view2<const bf16>(x_slot.at(a), x);
    if (with_norm) args.norm = View<const bf16, 1>(norm.at(a), k);
    args.codes = View<e4m3, 2>(codes.at(a), tokens, k);
    args.scale = View<e8m0, 2>(scale.at(a), tokens, k / 128);
    return args;
  };
  const auto token = [](ops::QuantizeArgs args, int64_t t) {
    args.x = args.x.rows(t, 1), args.codes = args.codes.rows(t, 1), args.scale = args.scale.rows(t, 1);
    return args;
  };
  c.bind<ops::QuantizeArgs>(ops::quantize_variants(), build,
                            std::function<ops::QuantizeArgs(ops::QuantizeArgs, int64_t)>(token), tokens);
  return c;
}

}  // namespace

OpCases quantize_cases() {
  const auto random = [](uint64_t seed) {
    Rng rng(seed);
    return make(some_tokens(rng), 128 * rng.between(1, 16), rng.chance(0.5), true, rng);
  };
  const auto timed = [](std::string_view shape, int64_t batch, uint64_t seed) {
    Rng rng(seed);
    return make(batch, 1024, shape == "q-norm", false, rng);
  };
  return {"quantize",
          "act_quant, optionally after RMSNorm",
          [] { return names_of(ops::quantize_variants()); },
          random,
          {"q-norm", "plain"},
          timed};
}

}  // namespace fathom::lab
