// The option --speculate of every command that generates.
#pragma once

#include <cstdint>
#include <string>

namespace fathom {

/// "off" is 0, "auto" -1, a number from 1 to 8 itself (EngineOptions::speculate). Throws Error for anything else.
int32_t read_speculate(const std::string& text);

inline constexpr const char* kSpeculateHelp =
    "drafts of a request that one step verifies: off, auto (as many as pay) or a number up to 8. The output is the "
    "same";

}  // namespace fathom
