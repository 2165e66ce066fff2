// What a model takes of a GPU's memory, known before anything is loaded.
//
// Everything but the graphs is computed by building the engine itself on a device that only counts
// (ops::CountingDevice): what is allocated later is what was counted.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "engine/loaded_model.h"
#include "engine/request.h"
#include "model/weights.h"

namespace fathom {

/// Bytes.
struct MemoryPlan {
  int ranks = 1;             // of a model in parts: all numbers are of the largest, rank 0's
  int64_t weights = 0;       // in checkpoint precision
  int64_t cache = 0;         // pages, index keys, compressor states
  int64_t workspaces = 0;    // activations, scratch memory of operations, batches
  int64_t graphs = 0;        // recorded steps and kernel code: an estimate
  int64_t recorded = 0;      // number of recorded steps
  int64_t host = 0;          // page-locked host memory
  int64_t device_total = 0;  // of the device
  int64_t device_free = 0;   // before loading
  int64_t total() const { return weights + cache + workspaces + graphs; }
  bool fits() const { return device_total == 0 || total() <= device_free; }
};

/// `options` as for the engine. Throws Error for options out of their range.
MemoryPlan plan_memory(const WeightSource& source, const EngineOptions& options, const ops::ComputeDevice& device,
                       const LoadOptions& load = {});

/// One line: "memory plan: weights 93.1 GB + cache ...".
std::string text_of(const MemoryPlan& plan);
/// One line: the real use of the device beside the plan.
std::string use_beside(const MemoryPlan& plan, const ops::ComputeDevice& device);
/// Throws Error with the numbers when it does not fit.
void check_fits(const MemoryPlan& plan, const std::string& model, const ops::ComputeDevice& device);

/// Throws Error when `depth` drafts (EngineOptions::speculate) of a model without any are asked for; says where it has
/// fewer. `say` may be empty.
void check_drafts(const WeightSource& source, int64_t depth, const std::function<void(const std::string&)>& say);

/// On a GPU: says the memory plan, writes it to `plan` and refuses what does not fit; then loads. `say` gets lines for
/// people and may be empty.
std::unique_ptr<LoadedModel> load_planned(OpenedModel opened, const EngineOptions& options,
                                          std::shared_ptr<ops::ComputeDevice> device,
                                          const std::function<void(const std::string&)>& say, MemoryPlan& plan);

}  // namespace fathom
