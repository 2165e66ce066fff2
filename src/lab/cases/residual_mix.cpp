#include "ops/residual_mix/residual_mix.h"

#include <fmt/format.h>

#include "lab/cases/cases.h"
#include "lab/cases/common.h"

namespace fathom::lab {

namespace {

using ops::kMixes;
using ops::kStreams;

struct Parts {
  bool post = true, pre = true;
  bool in_place = false;  // next_post and next_comb are the memory of post and comb
};

struct Shape {
  Parts parts;
  int64_t tokens, d;
  Strides rows{}, y_rows{};
  Slot<bf16> streams, y, norm, x;
  Slot<float> post, comb, fn, scale, base, next_post, next_comb;
  Slot<e4m3> codes;
  Slot<e8m0> code_scale;

  ops::ResidualMixArgs args(const Addresses& a) const {
    ops::ResidualMixArgs args;
    args.streams = view3<bf16>(streams.at(a), tokens, kStreams, rows);
    if (parts.post) {
      args.y = view2<const bf16>(y.at(a), y_rows);
      args.post = View<const float, 2>(post.at(a), tokens, int64_t{kStreams});
      args.comb = View<const float, 3>(comb.at(a), tokens, int64_t{kStreams}, int64_t{kStreams});
    }
    if (!parts.pre) return args;
    args.fn = View<const float, 2>(fn.at(a), int64_t{kMixes}, kStreams * d);
    args.scale = View<const float, 1>(scale.at(a), 3);
    args.base = View<const float, 1>(base.at(a), int64_t{kMixes});
    args.norm = View<const bf16, 1>(norm.at(a), d);
    args.next_post = View<float, 2>((parts.in_place ? post : next_post).at(a), tokens, int64_t{kStreams});
    args.next_comb =
        View<float, 3>((parts.in_place ? comb : next_comb).at(a), tokens, int64_t{kStreams}, int64_t{kStreams});
    args.x = View<bf16, 2>(x.at(a), tokens, d);
    args.x_codes = View<e4m3, 2>(codes.at(a), tokens, d);
    args.x_scale = View<e8m0, 2>(code_scale.at(a), tokens, d / 128);
    return args;
  }
  static ops::ResidualMixArgs token(ops::ResidualMixArgs args, int64_t t) {
    const auto one = [t](auto& view) {
      if (view.data) view = view.rows(t, 1);
    };
    one(args.streams), one(args.y), one(args.post), one(args.comb), one(args.next_post), one(args.next_comb),
        one(args.x);
    one(args.x_codes), one(args.x_scale);
    return args;
  }
};

void fill_inputs(Case& c, Shape& s, Rng& rng) {
  const int64_t n = s.tokens;
  fill_normal(s.streams.values, std::exp2(rng.uniform(-3, 4)), rng);
  if (s.parts.post) {
    s.y = c.in<bf16>("y", s.y_rows.elements());
    fill_normal(s.y.values, 1.0f, rng);
    const Tolerance mixes = Tolerance::relative_l2(2e-5);
    s.post = s.parts.in_place ? c.inout<float>("post", n * 4, mixes, 4) : c.in<float>("post", n * 4);
    s.comb = s.parts.in_place ? c.inout<float>("comb", n * 16, mixes, 16) : c.in<float>("comb", n * 16);
    for (float& v : s.post.values) v = rng.uniform(0, 2);
    for (float& v : s.comb.values) v = rng.uniform(0, 0.5f);
  }
  if (!s.parts.pre) return;
  s.fn = c.in<float>("fn", kMixes * kStreams * s.d);
  // The mixes are sums over 4 d values of the normalised streams: this keeps them of order one.
  fill_normal(s.fn.values, 1.0f / std::sqrt(static_cast<float>(kStreams * s.d)), rng);
  s.scale = c.in<float>("scale", 3), s.base = c.in<float>("base", kMixes), s.norm = c.in<bf16>("norm", s.d);
  for (float& v : s.scale.values) v = rng.uniform(0.2f, 2.0f);
  fill_normal(s.base.values, rng.pick({0.1f, 1.0f, 4.0f}), rng);
  fill_norm_weight(s.norm.values, rng);
}

Case make(int64_t tokens, int64_t d, Parts parts, bool ragged, Rng& rng) {
  Case c;
  c.op = "residual_mix";
  Shape s{parts, tokens, d};
  s.rows = ragged ? strided(tokens * kStreams, d, 8, rng) : dense(tokens * kStreams, d);
  s.y_rows = ragged ? strided(tokens, d, 8, rng) : dense(tokens, d);
  s.streams = parts.post ? c.inout<bf16>("streams", s.rows.elements(), Tolerance::bf16_ulp(1, 1e-5), s.rows.stride)
                         : c.in<bf16>("streams", s.rows.elements());
  fill_inputs(c, s, rng);
  const double n = static_cast<double>(tokens), wide = static_cast<double>(kStreams * d);
  c.cost = {n * wide * 2 * (parts.post ? 2 : 1) + (parts.post ? n * static_cast<double>(d) * 2 + n * 80 : 0), 0,
            Unit::fp32};
  if (parts.pre) {
    if (!parts.in_place) {
      s.next_post = c.out<float>("next_post", tokens * 4, Tolerance::relative_l2(2e-5), 4);
      s.next_comb = c.out<float>("next_comb", tokens * 16, Tolerance::relative_l2(2e-5), 16);
    }
    // Two roundings: of the mixed stream and of the norm.
    s.x = c.out<bf16>("x", tokens * d, Tolerance::bf16_ulp(2, 2e-5), d);
    s.codes = c.out<e4m3>("x_codes", tokens * d, Tolerance::by_property(), d);
    s.code_scale = c.out<e8m0>("x_scale", tokens * (d / 128), Tolerance::by_property(), d / 128);
    c.properties.push_back([s](const Addresses& got, const Addresses&) {
      return codes_follow("x_codes", View<const bf16, 2>(s.x.at(got), s.tokens, s.d),
                          View<const e4m3, 2>(s.codes.at(got), s.tokens, s.d),
                          View<const e8m0, 2>(s.code_scale.at(got), s.tokens, s.d / 128));
    });
    c.cost.bytes +=
        static_cast<double>(kMixes) * wide * 4 + n * (80 + static_cast<double>(d) * 3 + static_cast<double>(d) / 128);
    c.cost.flops = 2.0 * n * kMixes * wide;
  }
  c.shape = fmt::format("T={} d={}{}{}{}", tokens, d, parts.post ? " post" : "", parts.pre ? " pre" : "",
                        parts.in_place ? " in place" : "");
  c.bind<ops::ResidualMixArgs>(
      ops::residual_mix_variants(), [s](const Addresses& a) { return s.args(a); },
      std::function<ops::ResidualMixArgs(ops::ResidualMixArgs, int64_t)>(Shape::token), tokens);
  c.batch_moves_bits("sm90_fast");
  return c;
}

}  // namespace

OpCases residual_mix_cases() {
  const auto random = [](uint64_t seed) {
    Rng rng(seed);
    const int kind = static_cast<int>(rng.below(5));
    const Parts parts{kind != 0, kind != 1, kind == 2};
    return make(some_tokens(rng), 128 * rng.pick({1, 2, 4, 5, 8, 32}), parts, true, rng);
  };
  const auto timed = [](std::string_view shape, int64_t batch, uint64_t seed) {
    Rng rng(seed);
    return make(batch, 4096, {shape != "first", shape != "last", shape == "boundary"}, false, rng);
  };
  return {"residual_mix", "hc_post, hc_pre, RMSNorm, act_quant", [] { return names_of(ops::residual_mix_variants()); },
          random,         {"boundary", "first", "last"},         timed};
}

}  // namespace fathom::lab
