#include "engine/draft_shares.h"

#include <fmt/format.h>

namespace fathom {

std::string shares_by_place(std::span<const int64_t> offered_at, std::span<const int64_t> accepted_at) {
  std::string out;
  for (size_t i = 0; i < offered_at.size() && i < accepted_at.size() && offered_at[i] > 0; ++i)
    out += fmt::format("{}{:.0f}", i > 0 ? ", " : "",
                       100 * static_cast<double>(accepted_at[i]) / static_cast<double>(offered_at[i]));
  return out.empty() ? out : out + " %";
}

}  // namespace fathom
