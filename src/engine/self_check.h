// The checks behind `fathom check`: does this checkpoint run right on this machine?
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "engine/loaded_model.h"

namespace fathom {

enum class Verdict { passed, failed, skipped };

struct CheckResult {
  std::string name;
  Verdict verdict = Verdict::passed;
  std::string detail;  // what was compared, and the numbers
};

struct SelfCheckOptions {
  std::string ops = "cpu";
  std::filesystem::path goldens;  // folder with prompts.json and e2e_*.safetensors; empty: none
  int64_t draft_requests = 12;    // DraftCheck::requests
};

/// Runs all checks, reporting each as it ends. Inventory and finite values were already checked by load_model().
/// Returns true when none failed.
bool self_check(const LoadedModel& model, const SelfCheckOptions& options,
                const std::function<void(const CheckResult&)>& report);

}  // namespace fathom
