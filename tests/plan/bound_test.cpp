// The numbers of the architecture notes, sections 3.4, 7.1, 7.2 and 7.3, to three digits.
#include "plan/bound.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace fathom::plan {
namespace {

/// `value` in units of `unit` prints with three digits as `expected` does.
void expect_digits(double value, double unit, double expected) {
  EXPECT_NEAR(value / unit, expected, std::abs(expected) * 0.006) << value;
}

StepBound step(const Model& m, double bandwidth, double batch, double context, double accepted = 0) {
  Devices s;
  s.gpu = {"one", {}, 90, 132, 1e15, bandwidth, 1e18, 1e18, 0, {"none", 1e12, 1e-6, false}};
  return bound(m, s, batch, context, accepted);
}

TEST(PlanModel, FlashHasThePublishedParametersAndBytes) {
  const Model m = find_model("v4-flash");
  EXPECT_DOUBLE_EQ(m.weights.total(), 156'015'698'140);
  EXPECT_DOUBLE_EQ(m.weights.fixed(), 7'768'281'308);
  EXPECT_DOUBLE_EQ(m.weights.per_expert, 13'369'344);
  EXPECT_DOUBLE_EQ(m.parameters, 284'332'230'231);
  expect_digits(m.active_parameters, 1e9, 13.27);
  EXPECT_EQ(m.window_layers, 2);
  EXPECT_EQ(m.csa_layers, 21);
  EXPECT_EQ(m.hca_layers, 20);
}

TEST(PlanModel, ProHasThePublishedParametersAndBytes) {
  const Model m = find_model("v4-pro");
  EXPECT_DOUBLE_EQ(m.weights.total(), 850'748'205'004);
  EXPECT_DOUBLE_EQ(m.weights.fixed(), 26'822'006'732);
  EXPECT_DOUBLE_EQ(m.parameters, 1'572'997'179'491);
  expect_digits(m.active_parameters, 1e9, 48.85);
  expect_digits(operations(m, 0).products, 1e9, 97.70);
}

TEST(PlanModel, APrunedFlashIsAsLargeAsTheCheckpoint) {
  const Model m = find_model("v4-flash-0731-k160");
  EXPECT_DOUBLE_EQ(m.weights.total() + m.draft.resident, 107'803'320'952);
}

TEST(PlanModel, TheInBoxModelIsTheSameByNameAndByFolder) {
  const Model named = find_model("fairy"), opened = find_model(FATHOM_SOURCE_DIR "/models/fairy");
  EXPECT_DOUBLE_EQ(named.weights.total(), opened.weights.total());
  EXPECT_DOUBLE_EQ(named.draft.resident, opened.draft.resident);
  EXPECT_EQ(named.draft.stages, opened.draft.stages);
  EXPECT_DOUBLE_EQ(cache_read_bytes(named, 8192, 68), cache_read_bytes(opened, 8192, 68));
}

TEST(PlanModel, WhatIsNoModelIsAnErrorThatNamesTheBuiltInOnes) {
  EXPECT_THROW(find_model("v4-flsh"), Error);
  EXPECT_THROW(find_model(FATHOM_SOURCE_DIR "/docs"), Error);
  EXPECT_THROW(find_model("v4-flash", 3), Error);
}

TEST(PlanBound, WeightsOfAStepAreThoseOfTheNotes) {
  struct {
    double tokens, distinct, experts, flash, pro;
  } const rows[] = {{1, 6.0, 3.45, 11.22, 39.67},        {4, 23.2, 13.32, 21.09, 77.01},
                    {8, 44.2, 25.43, 33.20, 124.13},     {16, 80.8, 46.47, 54.24, 209.92},
                    {32, 136.2, 78.27, 86.04, 352.24},   {64, 199.9, 114.91, 122.68, 548.84},
                    {256, 255.4, 146.83, 154.60, 834.29}};
  const Model flash = find_model("v4-flash"), pro = find_model("v4-pro");
  for (const auto& r : rows) {
    const StepBound b = step(flash, 1e12, r.tokens, 1024);
    expect_digits(b.distinct, 1, r.distinct);
    expect_digits(b.expert_bytes, 1e9, r.experts);
    expect_digits(b.fixed_bytes + b.expert_bytes, 1e9, r.flash);
    const StepBound p = step(pro, 1e12, r.tokens, 1024);
    expect_digits(p.fixed_bytes + p.expert_bytes, 1e9, r.pro);
  }
}

TEST(PlanBound, CacheReadsAndOperationsAreThoseOfTheNotes) {
  struct {
    double context, fp8, fp4, gflop, pro;
  } const rows[] = {{1 << 10, 7.2, 6.8, 28.1, 10.2},        {8 << 10, 15.9, 13.2, 29.5, 31.8},
                    {32 << 10, 35.2, 24.2, 32.2, 0},        {128 << 10, 112.3, 68.3, 42.6, 170.8},
                    {512 << 10, 420.7, 244.5, 84.5, 615.7}, {1 << 20, 831.8, 479.5, 140.3, 1208.9}};
  const Model flash = find_model("v4-flash"), pro = find_model("v4-pro");
  for (const auto& r : rows) {
    expect_digits(cache_read_bytes(flash, r.context, 132), 1e6, r.fp8);
    expect_digits(cache_read_bytes(flash, r.context, 68), 1e6, r.fp4);
    expect_digits(operations(flash, r.context).total(), 1e9, r.gflop);
    if (r.pro > 0) expect_digits(cache_read_bytes(pro, r.context, 132), 1e6, r.pro);
  }
}

TEST(PlanBound, UpperBoundsAreThoseOfTheNotes) {
  struct {
    double batch, context, gigabytes, pro6000, h200, spark;
  } const rows[] = {{1, 8 << 10, 11.23, 159, 427, 24.3},     {1, 128 << 10, 11.33, 158, 424, 24.1},
                    {1, 1 << 20, 12.05, 149, 398, 22.7},     {4, 8 << 10, 21.15, 339, 908, 51.6},
                    {16, 128 << 10, 56.04, 511, 1371, 77.9}, {64, 8 << 10, 123.7, 926, 2483, 141},
                    {64, 1 << 20, 175.9, 651, 1746, 99.3}};
  const Model m = find_model("v4-flash");
  for (const auto& r : rows) {
    const StepBound b = step(m, 1.79e12, r.batch, r.context);
    expect_digits(b.bytes(), 1e9, r.gigabytes);
    expect_digits(b.tokens_per_second(), 1, r.pro6000);
    expect_digits(step(m, 4.8e12, r.batch, r.context).tokens_per_second(), 1, r.h200);
    expect_digits(step(m, 273e9, r.batch, r.context).tokens_per_second(), 1, r.spark);
  }
}

TEST(PlanBound, SpeculationBreaksEvenWhereTheNotesSay) {
  struct {
    double batch, plain, verify, draft, even;
  } const rows[] = {{1, 11.22, 27.29, 3.00, 2.70},
                    {4, 21.09, 71.64, 5.73, 3.67},
                    {16, 54.24, 139.84, 10.58, 2.77},
                    {64, 122.68, 154.92, 12.12, 1.36}};
  const Model m = find_model("v4-flash-0731");
  for (const auto& r : rows) {
    const StepBound plain = step(m, 1e12, r.batch, 1), verify = step(m, 1e12, r.batch, 1, 1);
    expect_digits(verify.fixed_bytes + verify.expert_bytes, 1e9, r.verify);
    expect_digits(verify.draft_bytes, 1e9, r.draft);
    const double bytes = plain.fixed_bytes + plain.expert_bytes;
    expect_digits((verify.fixed_bytes + verify.expert_bytes + verify.draft_bytes) / bytes, 1, r.even);
  }
}

TEST(PlanBound, AContextTokenCostsWhatTheNotesSay) {
  const Model flash = find_model("v4-flash"), pro = find_model("v4-pro");
  expect_digits(cache_bytes_per_token(flash, 132), 1, 3850);
  expect_digits(cache_bytes_per_token(flash, 68), 1, 3514);
  expect_digits(cache_bytes_per_token(pro, 132), 1, 5511);
  expect_digits(cache_bytes_fixed(flash), 1e6, 3.21 + 12.2);
}

TEST(PlanBound, RoutingOfItsOwnMeetsFewerExpertsThanUniform) {
  const Model m = find_model("v4-flash");
  const Routing uniform(256, 1.0 / 256);
  EXPECT_NEAR(distinct_experts(m, 16, uniform), distinct_experts(m, 16, {}), 1e-9);
  Routing skewed(256, 0.5 / 250);
  for (int i = 0; i < 6; ++i) skewed[static_cast<size_t>(i)] = 0.5 / 6;
  EXPECT_LT(distinct_experts(m, 16, skewed), distinct_experts(m, 16, {}));
}

/// Expected largest share by going through all ways to draw.
double most_loaded_by_hand(int drawn, int experts, int devices) {
  double sum = 0, ways = 0;
  for (uint32_t set = 0; set < 1u << experts; ++set) {
    if (__builtin_popcount(set) != drawn) continue;
    int most = 0;
    for (int d = 0; d < devices; ++d) {
      const uint32_t range = ((1u << experts / devices) - 1) << d * (experts / devices);
      most = std::max(most, __builtin_popcount(set & range));
    }
    sum += most, ++ways;
  }
  return sum / ways;
}

TEST(PlanBound, TheMostLoadedDeviceIsTheMeanOverAllWaysToDraw) {
  for (const int devices : {2, 4, 8})
    for (int drawn = 1; drawn <= 16; ++drawn)
      EXPECT_NEAR(most_loaded(drawn, 16, devices), most_loaded_by_hand(drawn, 16, devices), 1e-6)
          << drawn << " " << devices;
  EXPECT_NEAR(most_loaded(256, 256, 8), 32, 1e-6);
  EXPECT_NEAR(most_loaded(255.4, 256, 2), 127.9, 0.2);
}

TEST(PlanBound, DevicesShareWhatTheConverterSplitsAndRepeatTheRest) {
  const Model m = find_model("v4-flash");
  Devices s;
  s.gpu = GpuTable().find("h200");
  const StepBound one = bound(m, s, 16, 8192);
  EXPECT_NEAR(one.device_bytes, one.bytes(), 1);
  EXPECT_EQ(one.link_time, 0);
  s.count = 2;
  s.split = Split::tensor;
  const StepBound two = bound(m, s, 16, 8192);
  EXPECT_NEAR(two.device_bytes, (one.bytes() + m.weights.replicated + one.cache_bytes) / 2, 1);
  EXPECT_GT(two.link_time, 86 * 13e-6);
  s.split = Split::experts;
  EXPECT_GT(bound(m, s, 16, 8192).device_bytes, two.device_bytes);
  EXPECT_THROW(check_count(m, 3), Error);
}

TEST(PlanCapacity, FlashDoesNotFitOneCardButItsPrunedFormFitsAnH200) {
  Devices s;
  s.gpu = GpuTable().find("H200");
  EXPECT_FALSE(capacity(find_model("v4-flash"), s, 8192).fits());
  const Capacity pruned = capacity(find_model("v4-flash-0731-k160"), s, 8192);
  EXPECT_TRUE(pruned.fits());
  EXPECT_NEAR(pruned.sequence_bytes, 15.4e6 + 3850 * 8192, 1e5);
  s.count = 2;
  EXPECT_TRUE(capacity(find_model("v4-flash"), s, 131072).fits());
  s.gpu = GpuTable().find("pro 6000");
  EXPECT_TRUE(capacity(find_model("v4-flash"), s, 8192).fits());
  s.count = 1;
  s.with_draft = true;
  EXPECT_FALSE(capacity(find_model("v4-flash-0731-k160"), s, 8192).fits());
}

}  // namespace
}  // namespace fathom::plan
