// The tensors a checkpoint of the DeepSeek-V4 family must hold, computed from its config, and the check both ways:
// no parameter without a tensor, no tensor without a parameter. Spec: deepseek-v4.md section 5.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "formats/checkpoint.h"
#include "formats/config.h"
#include "formats/weight_format.h"

namespace fathom {

/// What the tensors under mtp.* are.
enum class DraftKind { none, mtp, dspark };

/// What the config does not fix and the tensors do.
struct CheckpointLayout {
  DraftKind draft = DraftKind::none;
  int draft_stages = 0;                              // mtp: 1; dspark: as many mtp.N as there are
  WeightFormat experts = WeightFormat::mxfp4;        // routed experts of the backbone
  WeightFormat draft_experts = WeightFormat::mxfp4;  // routed experts of the draft stages
  DType packed = DType::i8;                          // what holds packed E2M1 in the backbone's experts
  DType draft_packed = DType::i8;
};

/// One tensor that must be there. `offset` and `file` of the TensorInfo are unused.
using ExpectedTensor = TensorInfo;

/// Every tensor of such a checkpoint, backbone first, then the draft.
std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config, const CheckpointLayout& layout);

/// Sum of the tensors' bytes.
uint64_t total_bytes(const std::vector<ExpectedTensor>& tensors);

/// Finds the layout: format of the experts, kind and number of draft stages. Throws Error naming both sides when the
/// config (expert_dtype, quantization_config, dspark_*) contradicts the tensors, and when a format is not supported.
CheckpointLayout recognise_layout(const ModelConfig& config, const TensorTable& tensors);

/// recognise_layout, then the check both ways of names, types and shapes. Throws Error with the counts and the first
/// few names; `where` names the checkpoint in it.
CheckpointLayout check_inventory(const ModelConfig& config, const TensorTable& tensors, const std::string& where);

/// Checks the values of one tensor at load, by its name: scales as check_scales, gate.tid2eid as ids of experts, every
/// other float as finite. Packed E2M1 has no bad values and is not read. Throws Error with the tensor and the index.
void check_values(const ModelConfig& config, const TensorInfo& tensor, std::span<const std::byte> bytes);

}  // namespace fathom
