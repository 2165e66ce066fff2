// The --device flag of the commands that run a model.
#pragma once

#include <memory>
#include <string>

#include "ops/compute_device.h"

namespace fathom::cli {

/// Opens "auto", "cpu" or "cuda". `ops_given`: --ops was, which is a choice among the processor's operations.
std::shared_ptr<ops::ComputeDevice> device_for(const std::string& name, bool ops_given);

}  // namespace fathom::cli
