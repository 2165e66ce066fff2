// Everything a checkpoint folder gives: config, weights, tokenizer and the sampling it recommends.
#pragma once

#include <filesystem>
#include <memory>

#include "engine/sampler.h"
#include "formats/checkpoint.h"
#include "model/weights.h"
#include "text/tokenizer.h"

namespace fathom {

struct LoadedModel {
  Checkpoint checkpoint;
  Weights weights;
  text::Tokenizer tokenizer;
  SamplingParams recommended;  // from generation_config.json; the field's defaults where it says nothing
  double load_seconds = 0;

  const ModelConfig& config() const { return checkpoint.config(); }
  ops::ComputeDevice& device() const { return weights.memory->device(); }
  /// The table of fast operations for the device that holds the weights.
  const char* fast_ops() const { return device().shares_host_memory() ? "cpu" : "cuda"; }
};

/// Loads a checkpoint folder into the memory of `device`, with a progress line for big ones; ends with Interrupted on a
/// signal. Throws Error naming the file for anything missing, damaged or not supported, also when the tokenizer has
/// more tokens than the model has rows.
std::unique_ptr<LoadedModel> load_model(const std::filesystem::path& folder, const LoadOptions& options = {},
                                        std::shared_ptr<ops::ComputeDevice> device = ops::host_device());

}  // namespace fathom
