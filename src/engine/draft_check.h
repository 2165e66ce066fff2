// The check that drafts change nothing but the speed, on the device of a model.
#pragma once

#include <string>

#include "engine/loaded_model.h"
#include "engine/self_check.h"

namespace fathom {

/// Greedy and sampled requests with the drafts of the checkpoint and without: the same tokens. Skipped where the
/// weights have no drafts.
CheckResult drafts_change_nothing(const LoadedModel& m, const std::string& ops);

}  // namespace fathom
