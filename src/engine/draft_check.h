// The check that drafts change nothing but the speed, on the device of a model.
#pragma once

#include <string>

#include "engine/loaded_model.h"
#include "engine/self_check.h"

namespace fathom {

struct DraftCheck {
  std::string ops = "cpu";
  int64_t requests = 12;   // greedy ones; an eighth as many are sampled too
  double acceptance = -1;  // EngineOptions::draft_acceptance, to see that the check notices what drafts change
};

/// Requests with the drafts of the checkpoint and without: the same tokens and the same streamed text. Prompts are
/// pieces of text, random ids and phrases that repeat, of 1 to 262 tokens. Skipped where the weights have no drafts.
CheckResult drafts_change_nothing(const LoadedModel& m, const DraftCheck& check);

}  // namespace fathom
