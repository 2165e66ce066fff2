#include "cli/model_setup.h"

#include <cstdio>

namespace fathom::cli {

void declare_model_flags(Parser& p, ModelFlags& flags) {
  p.option("--synthetic", flags.synthetic,
           "Instead of a checkpoint: a built-in model with generated weights, e.g. v4-flash,experts=160 or "
           "v4-flash,layers=4,experts=16,seed=1. Real sizes and formats, meaningless text");
  p.option("--tensor-parallel", flags.tensor_parallel, kTensorParallelHelp, 1, 64);
  p.flag("--exact", flags.exact, "A request gives the same bits alone and in any batch (the default)");
  p.flag("--fast", flags.fast, "On a GPU: kernels whose last bits depend on the batch, where they are faster");
}

ModelChoice choose_model(const std::string& folder, const ModelFlags& flags) {
  if (flags.exact && flags.fast) throw UsageError("--exact and --fast exclude each other");
  if (folder.empty() == flags.synthetic.empty())
    throw UsageError(folder.empty() ? "MODEL is required: the folder of a checkpoint (or --synthetic)"
                                    : "MODEL and --synthetic exclude each other");
  if (flags.tensor_parallel > 1) ops::expect_several_devices();
  return {folder, flags.synthetic, static_cast<int>(flags.tensor_parallel)};
}

void say_on_stderr(const std::string& line) {
  std::fprintf(stderr, "%s\n", line.c_str());
}

void print_memory_use(const MemoryPlan& plan, const ops::ComputeDevice& device, bool quiet) {
  if (device.shares_host_memory() || quiet) return;
  std::fprintf(stderr, "%s\n", use_beside(plan, device).c_str());
}

}  // namespace fathom::cli
