#include "ops/route/route.h"

#include <fmt/format.h>

#include <algorithm>

#include "lab/cases/cases.h"
#include "lab/cases/common.h"

namespace fathom::lab {

namespace {

struct Shape {
  int64_t tokens, d, experts, k;
  bool hash = false;
  float route_scale = 1.5f;
  int64_t vocabulary = 64;
  Strides x_rows{};
  Slot<bf16> x, gate;
  Slot<float> bias, scores, weight;
  Slot<int32_t> table, ids, expert;

  ops::RouteArgs args(const Addresses& a) const {
    ops::RouteArgs args;
    args.x = view2<const bf16>(x.at(a), x_rows);
    args.gate = View<const bf16, 2>(gate.at(a), experts, d);
    if (hash) {
      args.table = View<const int32_t, 2>(table.at(a), vocabulary, k);
      args.ids = View<const int32_t, 1>(ids.at(a), tokens);
    } else {
      args.bias = View<const float, 1>(bias.at(a), experts);
    }
    args.route_scale = route_scale;
    args.scores = View<float, 2>(scores.at(a), tokens, experts);
    args.expert = View<int32_t, 2>(expert.at(a), tokens, k);
    args.weight = View<float, 2>(weight.at(a), tokens, k);
    return args;
  }
  static ops::RouteArgs token(ops::RouteArgs args, int64_t t) {
    args.x = args.x.rows(t, 1), args.scores = args.scores.rows(t, 1), args.expert = args.expert.rows(t, 1);
    args.weight = args.weight.rows(t, 1);
    if (args.ids.data) args.ids = args.ids.rows(t, 1);
    return args;
  }
};

/// The choice and the weights are judged by the scores that the same run wrote, so that near ties are no matter: they
/// must be exactly what those scores say.
std::string choice_follows(const Shape& s, std::span<const float> bias, std::span<const int32_t> table,
                           std::span<const int32_t> ids, const Addresses& got) {
  for (int64_t t = 0; t < s.tokens; ++t) {
    const float* score = s.scores.at(got) + t * s.experts;
    const int32_t* expert = s.expert.at(got) + t * s.k;
    const float* weight = s.weight.at(got) + t * s.k;
    std::vector<int32_t> want(static_cast<size_t>(s.experts));
    for (size_t e = 0; e < want.size(); ++e) want[e] = static_cast<int32_t>(e);
    if (s.hash) {
      want.assign(table.begin() + ids[static_cast<size_t>(t)] * s.k,
                  table.begin() + (ids[static_cast<size_t>(t)] + 1) * s.k);
    } else {
      std::ranges::stable_sort(want, [&](int32_t a, int32_t b) {
        return score[a] + bias[static_cast<size_t>(a)] > score[b] + bias[static_cast<size_t>(b)];
      });
      want.resize(static_cast<size_t>(s.k));
    }
    std::ranges::sort(want);
    double sum = 0;
    for (int32_t e : want) sum += score[e];
    for (int64_t i = 0; i < s.k; ++i) {
      const int32_t e = want[static_cast<size_t>(i)];
      if (expert[i] != e)
        return fmt::format("expert: token {}, place {}: got {}, the scores say {}", t, i, expert[i], e);
      const double w = score[e] / sum * s.route_scale;
      if (!(std::fabs(weight[i] - w) <= 2e-6 * w))
        return fmt::format("weight: token {}, expert {}: got {:.9g}, the scores say {:.9g}", t, e, weight[i], w);
    }
  }
  return "";
}

Case make(Shape s, bool ragged, Rng& rng) {
  Case c;
  c.op = "route";
  s.x_rows = ragged ? strided(s.tokens, s.d, 8, rng) : dense(s.tokens, s.d);
  s.x = c.in<bf16>("x", s.x_rows.elements()), s.gate = c.in<bf16>("gate", s.experts * s.d);
  fill_normal(s.x.values, 1.0f, rng);
  // Scores from almost 0 to far past softplus' switch to the identity at 20.
  fill_normal(s.gate.values, rng.pick({0.3f, 1.0f, 10.0f}) / std::sqrt(static_cast<float>(s.d)), rng);
  if (s.hash) {
    s.table = c.in<int32_t>("table", s.vocabulary * s.k), s.ids = c.in<int32_t>("ids", s.tokens);
    for (int64_t v = 0; v < s.vocabulary; ++v) {
      const auto chosen = sample(s.experts, s.k, rng);
      std::ranges::copy(chosen, s.table.values.begin() + v * s.k);
    }
    for (int32_t& id : s.ids.values) id = static_cast<int32_t>(rng.below(s.vocabulary));
  } else {
    s.bias = c.in<float>("bias", s.experts);
    fill_normal(s.bias.values, 0.3f, rng);
    if (ragged && rng.chance(0.3)) {  // equal experts: the lower id must win
      std::copy_n(s.gate.values.begin(), s.d, s.gate.values.begin() + (s.experts - 1) * s.d);
      s.bias.values.front() = s.bias.values.back() = 2.0f;
    }
  }
  s.scores = c.out<float>("scores", s.tokens * s.experts, Tolerance::relative_l2(1e-5), s.experts);
  s.expert = c.out<int32_t>("expert", s.tokens * s.k, Tolerance::by_property(), s.k);
  s.weight = c.out<float>("weight", s.tokens * s.k, Tolerance::by_property(), s.k);
  const std::vector<float> bias(s.bias.values.begin(), s.bias.values.end());
  const std::vector<int32_t> table(s.table.values.begin(), s.table.values.end()),
      ids(s.ids.values.begin(), s.ids.values.end());
  c.properties.push_back(
      [=](const Addresses& got, const Addresses&) { return choice_follows(s, bias, table, ids, got); });
  const double n = static_cast<double>(s.tokens), e = static_cast<double>(s.experts), d = static_cast<double>(s.d);
  c.cost = {2 * e * d + n * (2 * d + 4 * e + 8 * static_cast<double>(s.k)), 2 * n * e * d, Unit::bf16};
  c.shape = fmt::format("T={} d={} E={} k={} {}", s.tokens, s.d, s.experts, s.k, s.hash ? "hash" : "bias");
  c.bind<ops::RouteArgs>(
      ops::route_variants(), [s](const Addresses& a) { return s.args(a); },
      std::function<ops::RouteArgs(ops::RouteArgs, int64_t)>(Shape::token), s.tokens);
  return c;
}

}  // namespace

OpCases route_cases() {
  const auto random = [](uint64_t seed) {
    Rng rng(seed);
    Shape s{some_tokens(rng), 8 * rng.between(2, 70), rng.pick({6, 8, 16, 64, 100, 256}), 0};
    s.k = rng.between(1, std::min<int64_t>(8, s.experts));
    s.hash = rng.chance(0.4);
    s.route_scale = rng.pick({1.0f, 1.5f, 2.5f});
    return make(s, true, rng);
  };
  const auto timed = [](std::string_view shape, int64_t batch, uint64_t seed) {
    Rng rng(seed);
    Shape s{batch, 4096, 256, 6};
    s.hash = shape == "hash";
    s.vocabulary = 4096;
    return make(s, false, rng);
  };
  return {"route",
          "gate scores, top-k or hash, weights",
          [] { return names_of(ops::route_variants()); },
          random,
          {"bias", "hash"},
          timed};
}

}  // namespace fathom::lab
