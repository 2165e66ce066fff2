#include "cli/device.h"

#include "cli/parser.h"

namespace fathom::cli {

std::shared_ptr<ops::ComputeDevice> device_for(const std::string& name, bool ops_given) {
  if (ops_given && name == "cuda") throw UsageError("--ops chooses among the processor's operations: use --device cpu");
  return ops::open_device(ops_given ? "cpu" : name);
}

}  // namespace fathom::cli
