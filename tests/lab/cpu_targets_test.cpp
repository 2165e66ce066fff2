// The fast CPU variants on machines with older vectors: the same checks with the newer instruction sets switched off.
#include <gtest/gtest.h>
#include <hwy/highway.h>

#include "lab/check.h"

namespace fathom::lab {
namespace {

struct Machine {
  const char* name;
  int64_t without;  // targets that it lacks
};

class OlderMachine : public testing::TestWithParam<Machine> {
 protected:
  void SetUp() override { hwy::DisableTargets(GetParam().without); }
  void TearDown() override { hwy::DisableTargets(0); }
};

TEST_P(OlderMachine, CpuVariantsAgreeWithTheReference) {
  int ran = 0;
  for (const OpCases& op : all_ops()) {
    if (op.op == "output_products") continue;  // for GPUs alone
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      const Case c = op.random(seed);
      const Implementation* variant = c.find("cpu");
      ASSERT_NE(variant, nullptr) << op.op;
      Placement probe(c, ops::Backend::cpu, Guards::none);
      if (!variant->can_run(probe.addresses(), cpu_target().device)) continue;
      ++ran;
      const Verdict v = check(c, *variant, expect(c), cpu_target());
      EXPECT_TRUE(v.ok) << op.op << ", seed " << seed << ", " << c.shape << ": " << v.message;
    }
  }
  EXPECT_GT(ran, 0);
}

constexpr int64_t kAvx512 = HWY_AVX3 | HWY_AVX3_DL;

INSTANTIATE_TEST_SUITE_P(Machines, OlderMachine,
                         testing::Values(Machine{"avx2", kAvx512}, Machine{"sse4", kAvx512 | HWY_AVX2},
                                         Machine{"none", kAvx512 | HWY_AVX2 | HWY_SSE4 | HWY_SSSE3}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace fathom::lab
