// Every variant of every operation against the reference, on random ragged cases: a new variant is tested as soon as
// its registry names it.
#include <gtest/gtest.h>

#include "lab/check.h"

namespace fathom::lab {
namespace {

struct Param {
  const OpCases* op;
  std::string variant;
};

std::vector<Param> every_cpu_variant() {
  std::vector<Param> all;
  for (const OpCases& op : all_ops())
    for (const auto& v : op.variants())
      if (v.backend == ops::Backend::cpu) all.push_back({&op, std::string(v.name)});
  return all;
}

#ifdef FATHOM_SANITIZED
constexpr uint64_t kSeeds = 20;  // the values of all of them were compared without
#else
constexpr uint64_t kSeeds = 40;
#endif

class EveryVariant : public testing::TestWithParam<Param> {};

TEST_P(EveryVariant, AgreesWithTheReferenceOnRaggedCases) {
  const auto& [op, name] = GetParam();
  int ran = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Case c = op->random(seed);
    const Implementation* variant = c.find(name);
    ASSERT_NE(variant, nullptr);
    const Expected expected = expect(c);
    if (!variant->can_run(c.host_addresses(), cpu_target().device)) continue;
    ++ran;
    const Verdict v = check(c, *variant, expected, cpu_target());
    EXPECT_TRUE(v.ok) << op->op << " " << name << ", seed " << seed << ", " << c.shape << ": " << v.message;
    if (testing::Test::HasFailure()) break;
  }
  EXPECT_GT(ran, 0) << "the variant could run none of the cases";
}

INSTANTIATE_TEST_SUITE_P(Ops, EveryVariant, testing::ValuesIn(every_cpu_variant()),
                         [](const auto& info) { return std::string(info.param.op->op) + "_" + info.param.variant; });

}  // namespace
}  // namespace fathom::lab
