// Everything a model needs to run: config, weights, tokenizer and the sampling it recommends; from a checkpoint folder,
// or synthetic.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "engine/sampler.h"
#include "formats/checkpoint.h"
#include "model/weights.h"
#include "text/tokenizer.h"

namespace fathom {

/// The table of fast operations for a device.
inline const char* fast_ops(const ops::ComputeDevice& device) {
  return device.shares_host_memory() ? "cpu" : "cuda";
}

struct LoadedModel {
  std::unique_ptr<WeightSource> source;
  Weights weights;
  text::Tokenizer tokenizer;
  SamplingParams recommended;  // from generation_config.json; the field's defaults where it says nothing
  double load_seconds = 0;

  const ModelConfig& config() const { return source->config(); }
  /// The checkpoint's folder by its own name ("fairy" for "models/fairy/" and for "."), or what a synthetic model was
  /// asked for.
  std::string name() const { return source->name(); }
  ops::ComputeDevice& device() const { return weights.memory->device(); }
};

/// What a command names as its model: a checkpoint folder, or a synthetic model (model/synthetic.h).
struct ModelChoice {
  std::string folder;
  std::string synthetic;  // not empty: instead of the folder
  int ranks = 1;          // parts that the model is divided into, each on a device of its own

  std::string shown() const { return synthetic.empty() ? folder : "synthetic " + synthetic; }
};

/// A model that is opened and checked, its weights not yet loaded.
struct OpenedModel {
  std::unique_ptr<WeightSource> source;
  text::Tokenizer tokenizer;
  SamplingParams recommended;
  int ranks = 1;
};

/// Opens a model. Throws Error naming the file for anything missing, damaged or not supported, also when the tokenizer
/// has more tokens than the model has rows, or when the model cannot be divided over so many ranks. A synthetic model
/// gets the tokenizer of engine/stand_in_tokenizer.h.
OpenedModel open_model(const ModelChoice& choice);

/// Loads the weights of an opened model into the memory of `device` (rank 0's; the others are ops::devices_like), with
/// a progress line for big ones; ends with Interrupted on a signal.
std::unique_ptr<LoadedModel> load_model(OpenedModel opened, std::shared_ptr<ops::ComputeDevice> device,
                                        const LoadOptions& options = {});

/// Both for a checkpoint folder.
std::unique_ptr<LoadedModel> load_model(const std::filesystem::path& folder, const LoadOptions& options = {},
                                        std::shared_ptr<ops::ComputeDevice> device = ops::host_device());

}  // namespace fathom
