#include "engine/draft_shares.h"

#include <fmt/format.h>

#include "engine/request.h"

namespace fathom {

void DraftUse::add(const DraftUse& now, const DraftUse& before) {
  steps += now.steps - before.steps;
  offered += now.offered - before.offered, accepted += now.accepted - before.accepted;
  for (size_t i = 0; i < offered_at.size(); ++i) {
    offered_at[i] += now.offered_at[i] - before.offered_at[i];
    accepted_at[i] += now.accepted_at[i] - before.accepted_at[i];
  }
}

std::string shares_by_place(std::span<const int64_t> offered_at, std::span<const int64_t> accepted_at) {
  std::string out;
  for (size_t i = 0; i < offered_at.size() && i < accepted_at.size() && offered_at[i] > 0; ++i)
    out += fmt::format("{}{:.0f}", i > 0 ? ", " : "",
                       100 * static_cast<double>(accepted_at[i]) / static_cast<double>(offered_at[i]));
  return out.empty() ? out : out + " %";
}

}  // namespace fathom
