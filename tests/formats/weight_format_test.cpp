// Scans of loaded tensors: NaN scales, scales that are none, ids out of range.
#include "formats/weight_format.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"

namespace fathom {
namespace {

template <typename T, typename Check>
std::string complaint(DType dtype, const std::vector<T>& values, Check&& check) {
  TensorInfo tensor;
  tensor.name = "t";
  tensor.dtype = dtype;
  tensor.shape = {static_cast<int64_t>(values.size())};
  tensor.bytes = values.size() * sizeof(T);
  try {
    check(tensor, std::as_bytes(std::span(values)));
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(WeightScan, NanScalesAreFoundWithTheirIndex) {
  EXPECT_EQ(complaint<uint8_t>(DType::f8_e8m0, {0, 127, 254}, check_scales), "no error");
  EXPECT_EQ(complaint<uint8_t>(DType::f8_e8m0, {0, 127, 255}, check_scales),
            "tensor t: element 2 of F8_E8M0 [3] is NaN or infinite (damaged file?)");
  EXPECT_EQ(complaint<uint8_t>(DType::f8_e4m3, {0x7F, 1}, check_scales),
            "tensor t: element 0 of F8_E4M3 [2] is NaN or infinite (damaged file?)");
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {nan, -nan, infinity, -infinity})
    EXPECT_EQ(complaint<float>(DType::f32, {1, bad}, check_finite),
              "tensor t: element 1 of F32 [2] is NaN or infinite (damaged file?)");
  EXPECT_EQ(complaint<uint16_t>(DType::bf16, {0x7F80}, check_finite),
            "tensor t: element 0 of BF16 [1] is NaN or infinite (damaged file?)");
  EXPECT_EQ(complaint<uint16_t>(DType::f16, {0x3C00, 0xFC01}, check_finite),
            "tensor t: element 1 of F16 [2] is NaN or infinite (damaged file?)");
  EXPECT_EQ(complaint<uint16_t>(DType::bf16, {0x7F7F, 0xFF7F, 0}, check_finite), "no error");
}

TEST(WeightScan, ANanIsFoundAtEveryPlaceOfAnyLength) {
  for (size_t n = 1; n < 40; ++n) {
    for (size_t at = 0; at < n; ++at) {
      std::vector<uint8_t> codes(n, 0x7E);
      codes[at] = 0xFF;
      EXPECT_EQ(complaint(DType::f8_e4m3, codes, check_finite),
                fmt::format("tensor t: element {} of F8_E4M3 [{}] is NaN or infinite (damaged file?)", at, n));
      std::vector<float> values(n, std::numeric_limits<float>::max());
      values[at] = -std::numeric_limits<float>::infinity();
      EXPECT_EQ(complaint(DType::f32, values, check_finite),
                fmt::format("tensor t: element {} of F32 [{}] is NaN or infinite (damaged file?)", at, n));
      std::vector<uint16_t> halves(n, 0xFBFF);
      halves[at] = 0x7E00;
      EXPECT_EQ(complaint(DType::f16, halves, check_finite),
                fmt::format("tensor t: element {} of F16 [{}] is NaN or infinite (damaged file?)", at, n));
    }
  }
}

TEST(WeightScan, ScalesMustNotBeNegative) {
  EXPECT_EQ(complaint<float>(DType::f32, {1, 0, -1}, check_scales),
            "tensor t: element 2 of F32 [3] is no scale: it is negative (damaged file?)");
  EXPECT_EQ(complaint<float>(DType::f32, {-1}, check_finite), "no error");
  EXPECT_EQ(complaint<uint8_t>(DType::f8_e4m3, {0x00, 0x80, 0x81}, check_scales),
            "tensor t: element 2 of F8_E4M3 [3] is no scale: it is negative (damaged file?)");
}

TEST(WeightScan, IdsMustBeBelowTheLimit) {
  EXPECT_EQ(complaint<int64_t>(DType::i64, {0, 15}, [](auto& t, auto b) { check_ids(t, b, 16); }), "no error");
  EXPECT_EQ(complaint<int64_t>(DType::i64, {0, 16}, [](auto& t, auto b) { check_ids(t, b, 16); }),
            "tensor t: element 1 of I64 [2] is outside 0 to 15 (damaged file?)");
  EXPECT_EQ(complaint<int32_t>(DType::i32, {-1}, [](auto& t, auto b) { check_ids(t, b, 16); }),
            "tensor t: element 0 of I32 [1] is outside 0 to 15 (damaged file?)");
  EXPECT_EQ(complaint<float>(DType::f32, {1}, [](auto& t, auto b) { check_ids(t, b, 16); }),
            "tensor t is F32 [1], ids are I64 or I32");
}

TEST(WeightScan, IntegersAndEmptyTensorsPass) {
  EXPECT_EQ(complaint<uint8_t>(DType::i8, {255, 255}, check_finite), "no error");
  EXPECT_EQ(complaint<float>(DType::f32, {}, check_scales), "no error");
  EXPECT_EQ(complaint<uint8_t>(DType::f8_e8m0, {}, check_scales), "no error");
}

}  // namespace
}  // namespace fathom
