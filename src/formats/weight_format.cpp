#include "formats/weight_format.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <initializer_list>

#include "base/error.h"
#include "base/small_floats.h"

namespace fathom {
namespace {

int64_t blocks(int64_t n, int64_t size) {
  return n / size + (n % size != 0);
}

bool is_packed(DType type) {
  return type == DType::i8 || type == DType::u8;
}

/// The tensors that may belong to one matrix; nullptr where there is none.
struct Parts {
  const TensorInfo *weight, *scale, *weight_scale, *weight_scale_2, *input_scale;
};

/// Throws Error unless the tensor is there and is of that type and shape. Shape [] also matches [1].
void want(const TensorInfo* tensor, std::string_view prefix, std::string_view suffix, DType dtype,
          std::initializer_list<int64_t> shape, const TensorInfo& weight, WeightFormat format) {
  if (!tensor)
    fail("{}.{} is missing: {}.weight is {}, which as {} needs it", printable(prefix), suffix, printable(prefix),
         describe(weight), name_of(format));
  const bool scalar = shape.size() == 0 && (tensor->shape.empty() || tensor->shape == std::vector<int64_t>{1});
  if (tensor->dtype == dtype && (scalar || tensor->shape == std::vector<int64_t>(shape))) return;
  fail("{} is {}, but {}.weight is {}, which as {} needs {}", printable(tensor->name), describe(*tensor),
       printable(prefix), describe(weight), name_of(format), describe(dtype, std::vector<int64_t>(shape)));
}

[[noreturn]] void fail_unknown(const TensorTable& tensors, std::string_view prefix) {
  for (const char* suffix : {"weight_packed", "qweight", "weight_scale_inv", "weight_q", "qzeros"})
    if (tensors.find(fmt::format("{}.{}", prefix, suffix)))
      fail("{}.{}: a weight format that fathom does not support", printable(prefix), suffix);
  fail("{}.weight is missing", printable(prefix));
}

/// The first element of `bytes` for which bad(value) holds, or -1.
template <typename T, typename Bad>
int64_t find_bad(std::span<const std::byte> bytes, Bad&& bad) {
  for (size_t at = 0; at + sizeof(T) <= bytes.size(); at += sizeof(T)) {
    T value;
    std::memcpy(&value, bytes.data() + at, sizeof(T));
    if (bad(value)) return static_cast<int64_t>(at / sizeof(T));
  }
  return -1;
}

/// The first element whose bits under `mask` are all ones, or -1; `mask` lies just below the sign bit, so adding its
/// lowest bit carries into the sign exactly then. Eight bytes are tested at a time.
template <typename T>
int64_t find_all_ones(std::span<const std::byte> bytes, T mask) {
  constexpr uint64_t lanes = ~uint64_t{0} / static_cast<T>(~T{0});  // 1 in each lane
  const uint64_t masks = lanes * mask, lowest = lanes * static_cast<T>(mask & -mask);
  constexpr uint64_t signs = lanes << (8 * sizeof(T) - 1);
  for (size_t at = 0; at < bytes.size(); at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min<size_t>(8, bytes.size() - at));
    if (const uint64_t hits = ((word & masks) + lowest) & signs; hits != 0)
      return static_cast<int64_t>((at + static_cast<size_t>(std::countr_zero(hits)) / 8) / sizeof(T));
  }
  return -1;
}

int64_t find_not_finite(DType type, std::span<const std::byte> bytes) {
  switch (type) {
    case DType::f8_e8m0: {
      const void* hit = bytes.empty() ? nullptr : std::memchr(bytes.data(), 255, bytes.size());
      return hit ? static_cast<const std::byte*>(hit) - bytes.data() : -1;
    }
    case DType::f8_e4m3:
      return find_all_ones<uint8_t>(bytes, 0x7F);
    case DType::bf16:
      return find_all_ones<uint16_t>(bytes, 0x7F80);
    case DType::f16:
      return find_all_ones<uint16_t>(bytes, 0x7C00);
    case DType::f32:
      return find_all_ones<uint32_t>(bytes, 0x7F800000);
    default:
      return -1;
  }
}

}  // namespace

std::string_view name_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::fp8_block:
      return "FP8 (E4M3, a UE8M0 scale per 128x128)";
    case WeightFormat::mxfp4:
      return "MXFP4 (E2M1, a UE8M0 scale per 32)";
    case WeightFormat::nvfp4:
      return "NVFP4 (E2M1, an E4M3 scale per 16, an F32 scale)";
    case WeightFormat::bf16:
      return "BF16";
    case WeightFormat::f32:
      return "F32";
  }
  return "unknown";
}

WeightMatrix recognise_matrix(const TensorTable& tensors, std::string_view prefix) {
  std::string name(prefix);
  const auto part = [&](std::string_view suffix) {
    name.resize(prefix.size());
    name += suffix;
    return tensors.find(name);
  };
  const Parts p = {part(".weight"), part(".scale"), part(".weight_scale"), part(".weight_scale_2"),
                   part(".input_scale")};
  if (!p.weight) fail_unknown(tensors, prefix);
  const TensorInfo& weight = *p.weight;
  const auto shown = printable(prefix);
  if (part(".weight_scale_inv"))
    fail("{}.weight_scale_inv: the FP8 of DeepSeek-V3, which fathom does not support (V4 stores .scale, UE8M0)", shown);
  if (weight.shape.size() != 2 || weight.shape[0] <= 0 || weight.shape[1] <= 0)
    fail("{}.weight is {}, a matrix was expected", shown, describe(weight));
  const bool modelopt = p.weight_scale || p.weight_scale_2 || p.input_scale;
  if (p.scale && modelopt)
    fail("{}: has both .scale (MXFP4 or FP8) and {} (NVFP4): a mix of two formats", shown,
         p.weight_scale     ? ".weight_scale"
         : p.weight_scale_2 ? ".weight_scale_2"
                            : ".input_scale");

  const int64_t rows = weight.shape[0], stored = weight.shape[1];
  if (stored > (int64_t{1} << 40) || rows > (int64_t{1} << 40)) fail("{}.weight is {}", shown, describe(weight));
  if (modelopt && is_packed(weight.dtype)) {
    constexpr auto format = WeightFormat::nvfp4;
    if (2 * stored % 16 != 0)
      fail("{}.weight is {}: {} columns do not divide into groups of 16", shown, describe(weight), 2 * stored);
    want(p.weight_scale, prefix, "weight_scale", DType::f8_e4m3, {rows, 2 * stored / 16}, weight, format);
    want(p.weight_scale_2, prefix, "weight_scale_2", DType::f32, {}, weight, format);
    want(p.input_scale, prefix, "input_scale", DType::f32, {}, weight, format);
    return {format, rows, 2 * stored, weight.dtype};
  }
  if (p.scale && is_packed(weight.dtype)) {
    constexpr auto format = WeightFormat::mxfp4;
    if (2 * stored % 32 != 0)
      fail("{}.weight is {}: {} columns do not divide into groups of 32", shown, describe(weight), 2 * stored);
    want(p.scale, prefix, "scale", DType::f8_e8m0, {rows, 2 * stored / 32}, weight, format);
    return {format, rows, 2 * stored, weight.dtype};
  }
  if (p.scale && weight.dtype == DType::f8_e4m3) {
    constexpr auto format = WeightFormat::fp8_block;
    want(p.scale, prefix, "scale", DType::f8_e8m0, {blocks(rows, 128), blocks(stored, 128)}, weight, format);
    return {format, rows, stored, weight.dtype};
  }
  if (!p.scale && !modelopt) {
    if (weight.dtype == DType::bf16) return {WeightFormat::bf16, rows, stored, weight.dtype};
    if (weight.dtype == DType::f32) return {WeightFormat::f32, rows, stored, weight.dtype};
    fail("{}.weight is {} and has no scale: a weight format that fathom does not support", shown, describe(weight));
  }
  const TensorInfo& other = p.scale            ? *p.scale
                            : p.weight_scale   ? *p.weight_scale
                            : p.weight_scale_2 ? *p.weight_scale_2
                                               : *p.input_scale;
  fail("{}.weight is {} and {} is {}: a weight format that fathom does not support", shown, describe(weight),
       printable(other.name), describe(other));
}

void check_finite(const TensorInfo& tensor, std::span<const std::byte> bytes) {
  const int64_t at = find_not_finite(tensor.dtype, bytes);
  if (at >= 0)
    fail("tensor {}: element {} of {} is NaN or infinite (damaged file?)", printable(tensor.name), at,
         describe(tensor));
}

void check_scales(const TensorInfo& tensor, std::span<const std::byte> bytes) {
  check_finite(tensor, bytes);
  int64_t at = -1;
  if (tensor.dtype == DType::f8_e4m3)
    at = find_bad<uint8_t>(bytes, [](uint8_t v) { return v > 0x80; });
  else if (tensor.dtype == DType::f32)
    at = find_bad<float>(bytes, [](float v) { return v < 0; });
  if (at >= 0)
    fail("tensor {}: element {} of {} is no scale: it is negative (damaged file?)", printable(tensor.name), at,
         describe(tensor));
}

void check_ids(const TensorInfo& tensor, std::span<const std::byte> bytes, int64_t limit) {
  int64_t at = -1;
  if (tensor.dtype == DType::i64)
    at = find_bad<int64_t>(bytes, [=](int64_t v) { return v < 0 || v >= limit; });
  else if (tensor.dtype == DType::i32)
    at = find_bad<int32_t>(bytes, [=](int32_t v) { return v < 0 || v >= limit; });
  else
    fail("tensor {} is {}, ids are I64 or I32", printable(tensor.name), describe(tensor));
  if (at >= 0)
    fail("tensor {}: element {} of {} is outside 0 to {} (damaged file?)", printable(tensor.name), at, describe(tensor),
         limit - 1);
}

}  // namespace fathom
