// Fills: the kernel, run on emulated threads, against what it stands for.
#define FATHOM_GPU_EMULATOR
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>

#include "ops/gpu_emulator.h"

#include "ops/fill/fill_kernel.cuh"

namespace fathom::ops {

void fill_ref(const FillArgs& a, const Launch&);
void fill_cpu(const FillArgs& a, const Launch&);

namespace {

std::vector<std::byte> filled(FillArgs a, const std::function<void(const FillArgs&)>& run) {
  std::vector<uint64_t> memory(static_cast<size_t>(a.bytes / 8 + 2), 0x5A5A5A5A5A5A5A5Aull);
  a.to = reinterpret_cast<std::byte*>(memory.data());
  run(a);
  for (int64_t i = a.bytes; i < static_cast<int64_t>(memory.size() * 8); ++i)
    EXPECT_EQ(a.to[i], std::byte{0x5A}) << "written beyond the end";
  return {a.to, a.to + a.bytes};
}

TEST(Fill, EveryDeviceGivesTheSameBits) {
  for (const FillKind kind :
       {FillKind::bytes, FillKind::e4m3, FillKind::constant, FillKind::bf16, FillKind::f32, FillKind::ids}) {
    for (const int64_t bytes : {0, 4, 8, 12, 5000, 70000}) {
      FillArgs a;
      a.bytes = bytes, a.kind = kind, a.seed = 77 + static_cast<uint64_t>(bytes), a.byte = 0x71;
      a.center = 0.3f, a.spread = 1.7f, a.ids = 160, a.chosen = 6;
      const auto want = filled(a, [](const FillArgs& f) { fill_ref(f, {}); });
      EXPECT_EQ(filled(a, [](const FillArgs& f) { fill_cpu(f, {}); }), want);
      EXPECT_EQ(filled(a,
                       [](const FillArgs& f) {
                         device::emulator::run_grid(3, 1, 1, fill_words::kThreads, 0, false, 5,
                                                    [&](std::byte*) { fill_words::fill_block(f); });
                       }),
                want)
          << "kind " << static_cast<int>(kind) << ", " << bytes << " bytes";
    }
  }
}

TEST(Fill, APartOfRowsHasTheBitsOfTheWhole) {
  constexpr int64_t kRows = 11, kPitch = 9, kFirstRow = 3, kFirst = 2, kWords = 5, kPartRows = 6;
  FillArgs a;
  a.bytes = kRows * kPitch * 8, a.kind = FillKind::bf16, a.seed = 3, a.spread = 1;
  const auto whole = filled(a, [](const FillArgs& f) { fill_ref(f, {}); });
  std::vector<std::byte> want;
  for (int64_t row = kFirstRow; row < kFirstRow + kPartRows; ++row)
    want.insert(want.end(), whole.begin() + (row * kPitch + kFirst) * 8,
                whole.begin() + (row * kPitch + kFirst + kWords) * 8);
  a.bytes = kPartRows * kWords * 8, a.first = kFirstRow * kPitch + kFirst, a.row = kWords, a.pitch = kPitch;
  EXPECT_EQ(filled(a, [](const FillArgs& f) { fill_ref(f, {}); }), want);
  EXPECT_EQ(filled(a, [](const FillArgs& f) { fill_cpu(f, {}); }), want);
  EXPECT_EQ(filled(a,
                   [](const FillArgs& f) {
                     device::emulator::run_grid(2, 1, 1, fill_words::kThreads, 0, false, 5,
                                                [&](std::byte*) { fill_words::fill_block(f); });
                   }),
            want);
}

TEST(Fill, CodesAreFiniteAndHaveTheStatedSize) {
  FillArgs a;
  a.bytes = 1 << 16, a.kind = FillKind::e4m3, a.seed = 1;
  double squares = 0, sum = 0;
  for (const std::byte code : filled(a, [](const FillArgs& f) { fill_ref(f, {}); })) {
    const double v = to_float(e4m3{static_cast<uint8_t>(code)});
    ASSERT_TRUE(std::isfinite(v));
    squares += v * v, sum += v;
  }
  EXPECT_NEAR(std::sqrt(squares / (1 << 16)), kFillE4m3Rms, 0.01);
  EXPECT_NEAR(sum / (1 << 16), 0, 0.02);
}

TEST(Fill, SpreadIsEvenAroundTheCenter) {
  FillArgs a;
  a.bytes = 1 << 16, a.kind = FillKind::f32, a.seed = 9, a.center = 2, a.spread = 0.5f;
  const auto bytes = filled(a, [](const FillArgs& f) { fill_ref(f, {}); });
  const auto* values = reinterpret_cast<const float*>(bytes.data());
  double sum = 0, low = 9, high = 0;
  for (int i = 0; i < 1 << 14; ++i)
    sum += values[i], low = std::min<double>(low, values[i]), high = std::max<double>(high, values[i]);
  EXPECT_NEAR(sum / (1 << 14), 2, 0.01);
  EXPECT_GE(low, 1.5);
  EXPECT_LE(high, 2.5);
  EXPECT_LT(low, 1.51);
  EXPECT_GT(high, 2.49);
}

TEST(Fill, ExpertsOfATokenAreDifferentAndAllAreUsed) {
  for (const int experts : {6, 8, 160, 256}) {
    FillArgs a;
    a.bytes = 4 * 6 * 2000, a.kind = FillKind::ids, a.seed = 3, a.ids = experts, a.chosen = 6;
    const auto bytes = filled(a, [](const FillArgs& f) { fill_ref(f, {}); });
    const auto* ids = reinterpret_cast<const int32_t*>(bytes.data());
    std::set<int32_t> used;
    for (int row = 0; row < 2000; ++row) {
      const std::set<int32_t> own(ids + 6 * row, ids + 6 * row + 6);
      EXPECT_EQ(own.size(), 6u);
      EXPECT_GE(*own.begin(), 0);
      EXPECT_LT(*own.rbegin(), experts);
      used.insert(own.begin(), own.end());
    }
    EXPECT_EQ(used.size(), static_cast<size_t>(experts));
  }
}

}  // namespace
}  // namespace fathom::ops
