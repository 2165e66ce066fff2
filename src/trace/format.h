// Turning numbers into text for people, and text into lines and columns. Kernel names: see names.h.
#pragma once

#include <string>
#include <string_view>

#include "trace/model.h"

namespace fathom::trace {

/// "104.1 ms", "726 us", "93.2 us", "640 ns": four digits at most.
std::string time_text(Ns ns);
/// Milliseconds with three decimals, for columns: "104.114".
std::string milliseconds(Ns ns);
/// Microseconds for columns: "725.9", "5.62".
std::string microseconds(double ns);
/// "40.4 %"; "<0.1 %" for what is not zero but would print as zero.
std::string percent(double share);
/// "2.70x"; above a hundred times the figure says no more than that.
std::string speedup_text(double factor);
/// "1,148".
std::string count_text(int64_t n);
/// "1 call", "1,148 calls"; `many` where the plural is not one + "s".
std::string counted(int64_t n, std::string_view one, std::string_view many = {});

/// Columns that a terminal needs for `text` (one for each character).
size_t text_width(std::string_view text);
/// `text` cut to `width` columns: the middle is replaced by "…", since names often differ at their ends.
std::string fit(std::string_view text, size_t width);
std::string padded(std::string_view text, size_t width, bool right = false);
/// `text` broken at spaces into lines of at most `width` columns, `indent` in front of all but the first.
std::string wrapped(std::string_view text, size_t width, std::string_view indent = "");

}  // namespace fathom::trace
