// Models of the DeepSeek-V4 family whose dimensions are known without a checkpoint: for plans, and for models with
// synthetic weights. Spec: deepseek-v4.md section 1.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "formats/config.h"
#include "formats/inventory.h"

namespace fathom {

struct BuiltInModel {
  ModelConfig config;
  CheckpointLayout layout;
};

/// The model of that name: "v4-flash", "v4-flash-0731", "v4-flash-0731-k160" (pruned to 160 experts), "v4-pro",
/// "fairy". Nothing for other names.
std::optional<BuiltInModel> built_in_model(std::string_view name);

/// Their names, for messages: "v4-flash, v4-flash-0731, ...".
std::string built_in_models();

}  // namespace fathom
