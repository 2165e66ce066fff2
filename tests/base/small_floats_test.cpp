#include "base/small_floats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace fathom {
namespace {

/// The nearest entry of an ascending table of magnitudes; ties go to the even index.
int nearest(double magnitude, const std::vector<double>& table) {
  int best = 0;
  for (int i = 1; i < static_cast<int>(table.size()); ++i) {
    const double old_distance = std::abs(table[best] - magnitude), distance = std::abs(table[i] - magnitude);
    if (distance < old_distance || (distance == old_distance && i % 2 == 0)) best = i;
  }
  return best;
}

TEST(SmallFloats, EveryBf16ValueRoundsToTheNearestE4m3AndE2m1Code) {
  std::vector<double> e4m3_table, e2m1_table;
  for (int code = 0; code < 127; ++code) e4m3_table.push_back(to_float(e4m3{static_cast<uint8_t>(code)}));
  for (int code = 0; code < 8; ++code) e2m1_table.push_back(e2m1_to_float(static_cast<uint8_t>(code)));
  for (int bits = 0; bits < 0x7F80; ++bits) {
    const float v = to_float(bf16{static_cast<uint16_t>(bits)});
    if (v <= 448) {
      const int code = nearest(v, e4m3_table);
      ASSERT_EQ(to_e4m3(v).bits, code) << v;
      ASSERT_EQ(to_e4m3(-v).bits, code | 0x80) << -v;
    } else {
      ASSERT_EQ(to_e4m3(v).bits, 0x7E);
    }
    if (v <= 6) {
      const int code = nearest(v, e2m1_table);
      ASSERT_EQ(to_e2m1(v), code) << v;
      ASSERT_EQ(to_e2m1(-v), code | 8) << -v;
    }
  }
}

TEST(SmallFloats, CodesSurviveTheRoundTrip) {
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7F) == 0x7F) {
      EXPECT_TRUE(std::isnan(to_float(e4m3{static_cast<uint8_t>(code)})));
    } else {
      EXPECT_EQ(to_e4m3(to_float(e4m3{static_cast<uint8_t>(code)})).bits, code);
    }
  }
  for (int code = 0; code < 16; ++code) EXPECT_EQ(to_e2m1(e2m1_to_float(static_cast<uint8_t>(code))), code);
}

TEST(SmallFloats, ScalesAreTheSmallestPowersOfTwoThatFit) {
  EXPECT_EQ(to_float(e4m3_scale(448.0f)), 1.0f);
  EXPECT_EQ(to_float(e4m3_scale(1.75f * 32)), 0.125f);
  EXPECT_EQ(to_float(e4m3_scale(0.0f)), std::ldexp(1.0f, -22));
  EXPECT_EQ(to_float(e2m1_scale(6.0f)), 1.0f);
  EXPECT_EQ(to_float(e2m1_scale(0.0f)), std::ldexp(1.0f, -126));
  for (int code = 1; code < 254; ++code) {
    const e8m0 scale{static_cast<uint8_t>(code)};
    EXPECT_EQ(to_float(scale) * reciprocal(scale), 1.0f);
  }
}

TEST(SmallFloats, E8m0CoversItsWholeRange) {
  EXPECT_EQ(to_float(e8m0{0}), std::ldexp(1.0f, -127));
  EXPECT_EQ(to_float(e8m0{254}), std::ldexp(1.0f, 127));
  EXPECT_TRUE(std::isnan(to_float(e8m0{255})));
}

}  // namespace
}  // namespace fathom
