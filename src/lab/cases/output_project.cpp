#include "ops/output_project/output_project.h"

#include <fmt/format.h>

#include <algorithm>

#include "lab/cases/cases.h"
#include "lab/cases/common.h"

namespace fathom::lab {

namespace {

Case make(int64_t tokens, int64_t heads, int64_t groups, int64_t rank, bool ragged, Rng& rng) {
  Case c;
  c.op = "output_project";
  const int64_t k = heads / groups * 512, n = groups * rank, blocks = (n + 127) / 128 * (k / 128);
  const Strides o = ragged ? strided(tokens * heads, 512, 8, rng) : dense(tokens * heads, 512);
  const auto o_slot = c.in<bf16>("o", o.elements());
  fill_normal(o_slot.values, 0.3f, rng);
  const auto w = c.in<e4m3>("wo_a", n * k);
  fill_codes(w.values, rng);
  const auto w_scale = c.in<e8m0>("wo_a_scale", blocks);
  fill_scales(w_scale.values, -14, -10, rng);
  const auto z = c.out<bf16>("z", tokens * n, Tolerance::bf16_ulp(1, 2e-5), n);
  const auto codes = c.out<e4m3>("z_codes", tokens * n, Tolerance::by_property(), n);
  const auto scale = c.out<e8m0>("z_scale", tokens * (n / 128), Tolerance::by_property(), n / 128);
  c.properties.push_back([=](const Addresses& got, const Addresses&) {
    return codes_follow("z_codes", View<const bf16, 2>(z.at(got), tokens, n),
                        View<const e4m3, 2>(codes.at(got), tokens, n),
                        View<const e8m0, 2>(scale.at(got), tokens, n / 128));
  });
  c.cost = {static_cast<double>(n * k + blocks) +
                static_cast<double>(tokens) * static_cast<double>(heads * 1024 + 3 * n + n / 128),
            2.0 * static_cast<double>(tokens * n) * static_cast<double>(k), Unit::bf16};
  c.shape = fmt::format("T={} H={} groups={} rank={}", tokens, heads, groups, rank);
  const auto build = [=](const Addresses& a) {
    ops::OutputProjectArgs args;
    args.o = view3<const bf16>(o_slot.at(a), tokens, heads, o);
    args.groups = static_cast<int32_t>(groups);
    args.wo_a.codes = View<const e4m3, 2>(w.at(a), n, k);
    args.wo_a.scale = View<const e8m0, 2>(w_scale.at(a), (n + 127) / 128, k / 128);
    args.z = View<bf16, 2>(z.at(a), tokens, n);
    args.z_codes = View<e4m3, 2>(codes.at(a), tokens, n);
    args.z_scale = View<e8m0, 2>(scale.at(a), tokens, n / 128);
    return args;
  };
  const auto token = [](ops::OutputProjectArgs args, int64_t t) {
    args.o = args.o.rows(t, 1), args.z = args.z.rows(t, 1), args.z_codes = args.z_codes.rows(t, 1),
    args.z_scale = args.z_scale.rows(t, 1);
    return args;
  };
  c.bind<ops::OutputProjectArgs>(ops::output_project_variants(), build,
                                 std::function<ops::OutputProjectArgs(ops::OutputProjectArgs, int64_t)>(token), tokens);
  return c;
}

}  // namespace

OpCases output_project_cases() {
  const auto random = [](uint64_t seed) {
    Rng rng(seed);
    const int64_t groups = rng.pick({1, 2, 4}), tokens = rng.chance(0.2) ? rng.between(17, 130) : some_tokens(rng);
    return make(tokens, groups * rng.pick({1, 2}), groups, rng.pick({128, 256}), true, rng);
  };
  const auto timed = [](std::string_view shape, int64_t batch, uint64_t seed) {
    Rng rng(seed);
    const int64_t ranks = shape == "flash" ? 1 : 2;
    return make(batch, 64 / ranks, 8 / ranks, 1024, false, rng);
  };
  // flash-tp2: what one of two ranks has.
  return {"output_project", "grouped wo_a and act_quant", [] { return names_of(ops::output_project_variants()); },
          random,           {"flash", "flash-tp2"},       timed};
}

}  // namespace fathom::lab
