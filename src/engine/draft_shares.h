// How often drafts were right, added up and for people.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace fathom {

/// "80, 55 %": of the drafts verified at each place of a proposal, those that were right; up to the first place that
/// has none. Empty when none was verified.
std::string shares_by_place(std::span<const int64_t> offered_at, std::span<const int64_t> accepted_at);

}  // namespace fathom
