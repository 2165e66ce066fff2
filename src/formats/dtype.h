// The element types a safetensors file of the DeepSeek-V4 family may hold, with their sizes and names.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>

#include "base/small_floats.h"

namespace fathom {

/// Element types, by their safetensors names. I8 and U8 also carry packed E2M1: two codes a byte, low nibble first.
enum class DType : uint8_t { bf16, f16, f32, f8_e4m3, f8_e8m0, i8, u8, i32, i64 };

/// Bytes of one element.
constexpr int64_t size_of(DType type) {
  switch (type) {
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
    case DType::f16:
      return 2;
    default:
      return 1;
  }
}

/// The safetensors name: "BF16", "F8_E4M3", ...
constexpr std::string_view name_of(DType type) {
  constexpr std::string_view names[] = {"BF16", "F16", "F32", "F8_E4M3", "F8_E8M0", "I8", "U8", "I32", "I64"};
  return names[static_cast<int>(type)];
}

/// The type of that safetensors name, or nothing when fathom does not know it.
constexpr std::optional<DType> dtype_of(std::string_view name) {
  for (int i = 0; i <= static_cast<int>(DType::i64); ++i)
    if (name_of(static_cast<DType>(i)) == name) return static_cast<DType>(i);
  return std::nullopt;
}

/// The safetensors type that elements of the C++ type T are stored as.
template <typename T>
constexpr DType stored_as() {
  if constexpr (std::is_same_v<T, bf16>)
    return DType::bf16;
  else if constexpr (std::is_same_v<T, float>)
    return DType::f32;
  else if constexpr (std::is_same_v<T, e4m3>)
    return DType::f8_e4m3;
  else if constexpr (std::is_same_v<T, e8m0>)
    return DType::f8_e8m0;
  else if constexpr (std::is_same_v<T, e2m1x2> || std::is_same_v<T, int8_t>)
    return DType::i8;
  else if constexpr (std::is_same_v<T, uint8_t>)
    return DType::u8;
  else if constexpr (std::is_same_v<T, int32_t>)
    return DType::i32;
  else if constexpr (std::is_same_v<T, int64_t>)
    return DType::i64;
  else
    static_assert(sizeof(T) == 0, "no safetensors type stores T");
}

/// True when a tensor of `type` may be read as elements of T. Packed E2M1 comes as I8 or U8.
template <typename T>
constexpr bool holds(DType type) {
  return type == stored_as<T>() || (std::is_same_v<T, e2m1x2> && type == DType::u8);
}

}  // namespace fathom
