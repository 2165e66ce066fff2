// Workspace of the products over all tokens (project-inl.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cpu/scratch.h"

namespace fathom::ops::cpu {

/// Up to this many tokens a product is cut along the rows of its weight, beyond along the tokens.
inline constexpr int64_t kFewTokens = 64;

inline size_t project_workspace(int64_t tokens, int64_t columns) {
  return tokens > kFewTokens ? 0 : static_cast<size_t>(tokens * round_up(columns, 32)) * sizeof(float);
}

}  // namespace fathom::ops::cpu
