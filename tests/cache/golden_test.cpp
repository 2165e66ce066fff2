// End-to-end goldens: logits, greedy continuations and per-block results against tests/reference/ref.py.
#include <gtest/gtest.h>

#include <cmath>

#include "cache/model_support.h"
#include "formats/safetensors.h"

namespace fathom::test {
namespace {

SafetensorsFile golden(const std::string& name) { return SafetensorsFile(source_dir() / "tests/golden" / (name + ".safetensors")); }

double cosine(const float* a, const float* b, size_t n) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < n; ++i) ab += double{a[i]} * b[i], aa += double{a[i]} * a[i], bb += double{b[i]} * b[i];
  return ab / std::sqrt(aa * bb);
}

class Prompt : public testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(Prompt, LogitsMatchAndTheGreedyContinuationIsTheSame) {
  const auto [ops, name] = GetParam();
  const auto file = golden(std::string("e2e_") + name);
  const auto ids = file.copy<int32_t>("ids");
  const auto logits = file.copy<float>("logits");
  const auto where = file.copy<int32_t>("logit_positions");
  const auto greedy = file.copy<int32_t>("greedy");
  const auto margin = file.copy<float>("greedy_margin");

  Runner run(ops);
  const SequenceId id = run.cache.create();
  const auto rows = run.feed(id, ids, WantLogits::all);
  const size_t vocab = rows[0].size();
  double mean = 0;
  for (size_t i = 0; i < where.size(); ++i)
    mean += cosine(rows[static_cast<size_t>(where[i])].data(), logits.data() + i * vocab, vocab) / static_cast<double>(where.size());
  EXPECT_GT(mean, 0.999);
  RecordProperty("mean_logit_cosine", std::to_string(mean));

  int32_t token = argmax(rows.back());
  size_t step = 0;
  while (step < greedy.size() && token == greedy[step]) {
    ++step;
    const int32_t next[] = {token};
    token = argmax(run.feed(id, next)[0]);
  }
  if (std::string(ops) == "ref") {
    EXPECT_EQ(step, greedy.size()) << "first difference at a margin of " << margin[std::min(step, margin.size() - 1)];
  } else if (step < greedy.size()) {
    // One ulp grows through requantisation: the first difference must be at a token that was nearly a tie.
    EXPECT_LT(margin[step], 0.5f) << "at step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, Prompt,
                         testing::Combine(testing::Values("ref", "cpu"), testing::Values("plain", "chat", "passage300", "passage1500")),
                         [](const auto& info) { return std::string(std::get<0>(info.param)) + "_" + std::get<1>(info.param); });

}  // namespace
}  // namespace fathom::test
