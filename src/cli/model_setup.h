// From a model's name on the command line to loaded weights: synthetic models, the memory plan, exact or fast kernels.
#pragma once

#include <memory>
#include <string>

#include "cli/parser.h"
#include "engine/loaded_model.h"
#include "engine/memory_plan.h"

namespace fathom::cli {

/// Flags of every command that runs a model.
struct ModelFlags {
  std::string synthetic;
  bool exact = false, fast = false;
  int64_t tensor_parallel = 1;
};
inline constexpr const char* kTensorParallelHelp =
    "Divide the model over N GPUs of one machine (with --device cpu: over N threads of the processor, to test it)";

void declare_model_flags(Parser& p, ModelFlags& flags);
/// Throws UsageError when neither or both of a folder and --synthetic are given, or --exact and --fast.
ModelChoice choose_model(const std::string& folder, const ModelFlags& flags);

/// For load_planned().
void say_on_stderr(const std::string& line);
/// After the engine was made: the real use beside the plan. Prints nothing on the processor.
void print_memory_use(const MemoryPlan& plan, const ops::ComputeDevice& device, bool quiet);

}  // namespace fathom::cli
