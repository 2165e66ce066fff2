// One named piece of memory of a lab case, and how its content is judged after a run.
//
// Outputs are filled with a poison value before every run. Elements that the reference writes must be written by every
// other variant; elements that the reference leaves alone (padding between rows, dropped tokens) must stay poisoned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/small_floats.h"

namespace fathom::lab {

enum class DType { bf16, f32, i32, e4m3, e8m0, e2m1x2, bytes };

template <typename T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, bf16>)
    return DType::bf16;
  else if constexpr (std::is_same_v<T, float>)
    return DType::f32;
  else if constexpr (std::is_same_v<T, int32_t>)
    return DType::i32;
  else if constexpr (std::is_same_v<T, e4m3>)
    return DType::e4m3;
  else if constexpr (std::is_same_v<T, e8m0>)
    return DType::e8m0;
  else if constexpr (std::is_same_v<T, e2m1x2>)
    return DType::e2m1x2;
  else
    return DType::bytes;
}

size_t element_bytes(DType type);
std::string_view dtype_name(DType type);

enum class Role { in, out, inout };

/// What may differ from the reference.
struct Tolerance {
  enum class Kind { exact, bf16_ulp, relative_l2, by_property };
  Kind kind = Kind::exact;
  double limit = 0;  // steps of bf16, or ||got - want|| / ||want||
  /// Elements whose error is below slack * (largest magnitude of the row) pass in any case: results that cancel to
  /// almost nothing have no meaningful last bit. Only for bf16_ulp.
  double slack = 0;
  /// What the largest magnitude of each row is taken for at least, for short rows that may cancel as a whole; rows
  /// behind the last have its value, and none means 0.
  std::vector<double> least = {};

  static Tolerance exact() { return {}; }
  static Tolerance bf16_ulp(int steps, double slack = 1e-6, std::vector<double> least = {}) {
    return {Kind::bf16_ulp, static_cast<double>(steps), slack, std::move(least)};
  }
  /// Over the whole buffer; a single row may reach four times the limit.
  static Tolerance relative_l2(double limit) { return {Kind::relative_l2, limit, 0, {}}; }
  /// Values are judged by a property of the case; only written and unwritten elements (NaN) must agree.
  static Tolerance by_property() { return {Kind::by_property, 0, 0, {}}; }
};

struct Buffer {
  std::string name;
  Role role = Role::in;
  DType type = DType::bytes;
  Tolerance tolerance;
  int64_t row = 1;      // elements of the last dimension: errors are also judged row by row
  int64_t align = 256;  // the address is a multiple of this and of nothing larger, so that lucky alignment shows
  std::vector<std::byte> bytes;  // inputs: content; outputs: poison

  int64_t count() const { return static_cast<int64_t>(bytes.size() / element_bytes(type)); }
};

/// Fills with the poison of the type: NaN for float formats, a number nobody computes for integers.
void poison(DType type, std::span<std::byte> bytes);

/// How far `got` is from `want` (both whole contents of `buffer`).
struct Difference {
  bool ok = true;
  double relative_l2 = 0;  // over finite elements of float types; 0 for others
  double worst_ulp = 0;    // bf16 only
  int64_t differing = 0;   // elements that are not bitwise equal
  std::string message;     // when not ok: first bad element or row
};
Difference compare(const Buffer& buffer, std::span<const std::byte> got, std::span<const std::byte> want);

/// The element as a number (float types decoded, codes without their scales).
double element(DType type, const std::byte* data, int64_t at);

}  // namespace fathom::lab
