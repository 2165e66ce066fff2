#include "bench/server_counts.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace fathom::bench {
namespace {

constexpr int64_t kMostPlaces = 64;

/// The number behind `position="` in the labels; -1: none that can be.
int64_t place_of(std::string_view labels) {
  constexpr std::string_view key = "position=\"";
  const auto at = labels.find(key);
  if (at == labels.npos) return -1;
  int64_t place = -1;
  const std::string_view digits = labels.substr(at + key.size());
  std::from_chars(digits.data(), digits.data() + digits.size(), place);
  return place >= 0 && place < kMostPlaces ? place : -1;
}

void add_at(std::vector<int64_t>& to, int64_t place, int64_t value) {
  if (place < 0) return;
  to.resize(std::max(to.size(), static_cast<size_t>(place) + 1), 0);
  to[static_cast<size_t>(place)] += value;
}

}  // namespace

DraftCounts read_counts(std::string_view metrics) {
  DraftCounts out;
  while (!metrics.empty()) {
    const auto end = std::min(metrics.find('\n'), metrics.size());
    const std::string_view line = metrics.substr(0, end);
    metrics.remove_prefix(std::min(metrics.size(), end + 1));
    const auto space = line.rfind(' ');
    if (line.starts_with('#') || space == line.npos) continue;
    const std::string_view name = line.substr(0, std::min(line.find_first_of("{ "), line.size())),
                           labels = line.substr(name.size(), space - name.size());
    double number = 0;
    std::from_chars(line.data() + space + 1, line.data() + line.size(), number);
    if (!(std::abs(number) < 1e15)) continue;
    const auto value = static_cast<int64_t>(number);
    if (name == "fathom_engine_steps_total") out.steps += value;
    if (name == "vllm:generation_tokens_total") out.generated += value;
    if (name == "vllm:spec_decode_num_drafts_total") out.proposals += value;
    if (name == "fathom_draft_faults_total") out.faults += value;
    if (name == "vllm:spec_decode_num_draft_tokens_total") out.offered += value;
    if (name == "vllm:spec_decode_num_accepted_tokens_total") out.accepted += value;
    if (name == "fathom_draft_tokens_per_pos_total") add_at(out.offered_at, place_of(labels), value);
    if (name == "vllm:spec_decode_num_accepted_tokens_per_pos_total") add_at(out.accepted_at, place_of(labels), value);
  }
  const size_t places = std::max(out.offered_at.size(), out.accepted_at.size());
  out.offered_at.resize(places, 0), out.accepted_at.resize(places, 0);
  return out;
}

DraftCounts difference(const DraftCounts& before, const DraftCounts& after) {
  DraftCounts out = after;
  out.steps -= before.steps, out.generated -= before.generated;
  out.proposals -= before.proposals, out.faults -= before.faults;
  out.offered -= before.offered, out.accepted -= before.accepted;
  for (size_t i = 0; i < std::min(before.offered_at.size(), out.offered_at.size()); ++i)
    out.offered_at[i] -= before.offered_at[i], out.accepted_at[i] -= before.accepted_at[i];
  if (out.steps < 0 || out.generated < 0 || out.offered < 0 || out.accepted < 0) return {};
  return out;
}

}  // namespace fathom::bench
