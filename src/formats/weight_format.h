// How a weight matrix is stored, recognised from its tensors and never guessed.
//
//   fp8_block  .weight F8_E4M3 [out, in] + .scale F8_E8M0 [ceil(out/128), ceil(in/128)]
//   mxfp4      .weight I8 or U8 [out, in/2], two E2M1 a byte + .scale F8_E8M0 [out, in/32]
//   nvfp4      .weight U8 or I8 [out, in/2] + .weight_scale F8_E4M3 [out, in/16] + .weight_scale_2 F32 [] or [1]
//              + .input_scale F32 [] or [1]; value = e2m1 * weight_scale * weight_scale_2
//   bf16, f32  .weight alone
// Spec: deepseek-v4.md section 4.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "formats/safetensors.h"

namespace fathom {

enum class WeightFormat { fp8_block, mxfp4, nvfp4, bf16, f32 };

/// "FP8 (E4M3 with UE8M0 scales per 128x128 block)" and so on, for messages.
std::string_view name_of(WeightFormat format);

/// A matrix as found: its format, its logical size and the type that holds packed nibbles (I8 or U8).
struct WeightMatrix {
  WeightFormat format = WeightFormat::bf16;
  int64_t rows = 0, columns = 0;  // out, in: logical elements, not packed bytes
  DType storage = DType::bf16;    // of .weight
};

/// Recognises the matrix whose tensors are PREFIX.weight, PREFIX.scale and so on. Throws Error, naming the tensors,
/// when none is there, when they mix formats, when a scale's shape does not fit, or when the format is another
/// (weight_scale_inv of DeepSeek-V3, packed INT4, GPTQ, ...).
WeightMatrix recognise_matrix(const TensorTable& tensors, std::string_view prefix);

/// Throws Error with the tensor's name and the element's index when a value is not finite: E8M0 255, E4M3 NaN, F32,
/// BF16 and F16 NaN or infinity. Integer types pass. `bytes` are the tensor's bytes. For scales use check_scales.
void check_finite(const TensorInfo& tensor, std::span<const std::byte> bytes);

/// check_finite, and no scale (E8M0, E4M3 or F32) is negative.
void check_scales(const TensorInfo& tensor, std::span<const std::byte> bytes);

/// Throws Error when an element of the I64 or I32 tensor is outside [0, limit): ffn.gate.tid2eid.
void check_ids(const TensorInfo& tensor, std::span<const std::byte> bytes, int64_t limit);

}  // namespace fathom
