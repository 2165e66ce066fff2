#include "ops/draft/draft.h"

#include <fmt/format.h>

#include "lab/cases/cases.h"
#include "lab/cases/common.h"

namespace fathom::lab {

namespace {

Case mean_case(int64_t tokens, int64_t d, bool ragged, Rng& rng) {
  Case c;
  c.op = "stream_mean";
  const Strides streams = ragged ? strided(4 * tokens, d, 8, rng) : dense(4 * tokens, d);
  const Strides mean{tokens, d, 3 * d};  // a third of the feature vector
  const auto x = c.in<bf16>("streams", streams.elements());
  fill_normal(x.values, std::exp2(rng.uniform(-3, 4)), rng);
  const auto out = c.out<bf16>("mean", mean.elements(), Tolerance::bf16_ulp(1, 1e-6), mean.stride);
  c.cost = {static_cast<double>(tokens * d) * 10, 0, Unit::fp32};
  c.shape = fmt::format("T={} d={}", tokens, d);
  c.bind<ops::StreamMeanArgs>(ops::stream_mean_variants(), [=](const Addresses& a) {
    ops::StreamMeanArgs args;
    args.streams = view3<const bf16>(x.at(a), tokens, 4, streams);
    args.mean = view2<bf16>(out.at(a), mean);
    return args;
  });
  return c;
}

Case join_case(int64_t tokens, int64_t rows, int64_t d, bool ragged, Rng& rng) {
  Case c;
  c.op = "stream_join";
  const Strides token = ragged ? strided(tokens, d, 8, rng) : dense(tokens, d), stream = dense(4 * tokens, d);
  const auto x = c.in<bf16>("token", token.elements()), y = c.in<bf16>("stream", stream.elements());
  fill_normal(x.values, std::exp2(rng.uniform(-3, 4)), rng);
  fill_normal(y.values, std::exp2(rng.uniform(-3, 4)), rng);
  const auto which = c.in<int32_t>("rows", rows);
  for (int32_t& r : which.values) r = static_cast<int32_t>(rng.below(tokens));
  const auto out = c.out<bf16>("streams", 4 * rows * d, Tolerance::bf16_ulp(0, 0), d);
  c.cost = {static_cast<double>(rows * d) * 18, 0, Unit::fp32};
  c.shape = fmt::format("T={} R={} d={}", tokens, rows, d);
  c.bind<ops::StreamJoinArgs>(ops::stream_join_variants(), [=](const Addresses& a) {
    ops::StreamJoinArgs args;
    args.token = view2<const bf16>(x.at(a), token);
    args.stream = view3<const bf16>(y.at(a), tokens, 4, stream);
    args.rows = View<const int32_t, 1>(which.at(a), rows);
    args.streams = view3<bf16>(out.at(a), rows, 4, dense(4 * rows, d));
    return args;
  });
  return c;
}

Case markov_case(int64_t batch, int64_t vocabulary, int64_t rank, int64_t d, Rng& rng) {
  Case c;
  c.op = "markov";
  const auto token = c.in<int32_t>("token", batch);
  for (int32_t& t : token.values) t = static_cast<int32_t>(rng.below(vocabulary));
  const auto w1 = c.in<bf16>("w1", vocabulary * rank), w2 = c.in<bf16>("w2", vocabulary * rank);
  fill_normal(w1.values, 0.5f, rng);
  fill_normal(w2.values, 0.1f, rng);
  const auto hidden = c.in<bf16>("hidden", batch * d), confidence = c.in<bf16>("confidence", d + rank);
  fill_normal(hidden.values, 1.0f, rng);
  fill_normal(confidence.values, 0.05f, rng);
  const auto logits = c.inout<float>("logits", batch * vocabulary, Tolerance::relative_l2(3e-6), vocabulary);
  fill_normal(logits.values, 3.0f, rng);
  const auto logit = c.out<float>("confidence_logit", batch, Tolerance::relative_l2(1e-5), batch);
  const double b = static_cast<double>(batch), v = static_cast<double>(vocabulary), r = static_cast<double>(rank);
  c.cost = {2 * v * r + b * (2 * r + 2 * static_cast<double>(d) + 8 * v), 2 * b * v * r, Unit::bf16};
  c.shape = fmt::format("B={} V={} r={} d={}", batch, vocabulary, rank, d);
  c.bind<ops::MarkovArgs>(ops::markov_variants(), [=](const Addresses& a) {
    ops::MarkovArgs args;
    args.token = View<const int32_t, 1>(token.at(a), batch);
    args.w1 = View<const bf16, 2>(w1.at(a), vocabulary, rank);
    args.w2 = View<const bf16, 2>(w2.at(a), vocabulary, rank);
    args.hidden = View<const bf16, 2>(hidden.at(a), batch, d);
    args.confidence = View<const bf16, 1>(confidence.at(a), d + rank);
    args.logits = View<float, 2>(logits.at(a), batch, vocabulary);
    args.confidence_logit = View<float, 1>(logit.at(a), batch);
    return args;
  });
  return c;
}

}  // namespace

OpCases stream_mean_cases() {
  const auto random = [](uint64_t seed) {
    Rng rng(seed);
    return mean_case(some_tokens(rng), 8 * rng.between(1, 80), true, rng);
  };
  const auto timed = [](std::string_view, int64_t batch, uint64_t seed) {
    Rng rng(seed);
    return mean_case(batch, 4096, false, rng);
  };
  return {"stream_mean",
          "draft features of a target layer",
          [] { return names_of(ops::stream_mean_variants()); },
          random,
          {"flash"},
          timed};
}

OpCases stream_join_cases() {
  const auto random = [](uint64_t seed) {
    Rng rng(seed);
    const int64_t tokens = some_tokens(rng);
    return join_case(tokens, rng.between(1, tokens), 8 * rng.between(1, 80), true, rng);
  };
  const auto timed = [](std::string_view, int64_t batch, uint64_t seed) {
    Rng rng(seed);
    return join_case(batch, batch, 4096, false, rng);
  };
  return {
      "stream_join", "start of the MTP block", [] { return names_of(ops::stream_join_variants()); }, random, {"flash"},
      timed};
}

OpCases markov_cases() {
  const auto random = [](uint64_t seed) {
    Rng rng(seed);
    return markov_case(rng.between(1, 9), rng.between(1, 700), 8 * rng.between(1, 32), 8 * rng.between(1, 80), rng);
  };
  const auto timed = [](std::string_view, int64_t batch, uint64_t seed) {
    Rng rng(seed);
    return markov_case(batch, 129280, 256, 4096, rng);
  };
  return {"markov", "draft logits and confidence", [] { return names_of(ops::markov_variants()); }, random, {"flash"},
          timed};
}

}  // namespace fathom::lab
