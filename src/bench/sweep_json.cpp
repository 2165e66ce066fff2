// The machine-readable report.
#include <nlohmann/json.hpp>

#include "bench/sweep.h"

namespace fathom::bench {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const Quantiles& q) {
  return {{"count", q.count}, {"p50", q.p50}, {"p90", q.p90}, {"p99", q.p99}, {"mean", q.mean}, {"max", q.most}};
}

/// Null where the engine's steps are not known.
Json json_of(const DraftCounts& d) {
  if (d.steps == 0) return nullptr;
  Json shares = Json::array();
  for (size_t i = 0; i < d.accepted_at.size(); ++i)
    shares.push_back(d.offered_at[i] > 0
                         ? Json(static_cast<double>(d.accepted_at[i]) / static_cast<double>(d.offered_at[i]))
                         : Json(nullptr));
  return {{"steps", d.steps},
          {"steps_per_second", d.steps_a_second()},
          {"tokens_per_step", d.tokens_a_step()},
          {"draft_proposals", d.proposals},
          {"draft_faults", d.faults},
          {"drafts_verified", d.offered},
          {"drafts_accepted", d.accepted},
          {"accepted_share_by_position", std::move(shares)}};
}

Json json_of(const LevelStats& s) {
  return {{"requests", s.requests},
          {"errors", s.errors},
          {"error_examples", s.first_errors},
          {"looping_outputs", s.looping},
          {"without_usage", s.uncounted},
          {"steady",
           {{"seconds", s.stretch.length()},
            {"ramp_seconds", s.stretch.before},
            {"drain_seconds", s.stretch.after},
            {"open_peak", s.stretch.peak},
            {"open_mean", s.stretch.mean},
            {"open_min", s.stretch.least},
            {"first_fifth_over_rest", s.early}}},
          {"output_tokens_per_second", s.output_rate},
          {"reasoning_tokens_per_second", s.reasoning_rate},
          {"total_tokens_per_second", s.total_rate},
          {"whole_run_output_tokens_per_second", s.whole_rate},
          {"requests_per_second", s.request_rate},
          {"pieces_per_second", s.piece_rate},
          {"step_seconds", s.step_time},
          {"tokens_per_piece", s.tokens_a_piece},
          {"engine", json_of(s.drafts)},
          {"mean_prompt_tokens", s.prompt_tokens},
          {"mean_output_tokens", s.output_tokens},
          {"cached_share_of_prompts", s.cached_share},
          {"seconds",
           {{"ttft", json_of(s.first_token)},
            {"itl", json_of(s.gap)},
            {"tpot", json_of(s.token_time)},
            {"e2e", json_of(s.whole)},
            {"sent_late", json_of(s.late)}}},
          {"client_cpu_seconds_per_token", s.cpu_a_token},
          {"interrupted", s.interrupted}};
}

}  // namespace

std::string json_report(const Sweep& s) {
  Json out = {{"schema", "fathom-bench-1"},
              {"target", s.target},
              {"started", s.started},
              {"workload",
               {{"content", s.content},
                {"input_tokens", {s.workload.input.low, s.workload.input.high}},
                {"output_tokens", {s.workload.output.low, s.workload.output.high}},
                {"shared_prefix", s.workload.shared_prefix},
                {"seed", s.workload.seed}}},
              {"levels", Json::array()}};
  for (const Level& l : s.levels) {
    Json level = Json::object();
    if (l.rate > 0)
      level["rate"] = l.rate;
    else
      level["concurrency"] = l.concurrency;
    level["spread"] = l.spread();
    if (l.floor)
      level["floor"] = {{"seconds", l.floor->seconds()},
                        {"bytes", l.floor->bytes},
                        {"copy_bytes_per_second", l.floor->bandwidth},
                        {"context", l.floor->context},
                        {"different_experts", l.floor->experts},
                        {"different_experts_if_even", l.floor->expected_experts}};
    level.update(json_of(l.median()));
    Json repeats = Json::array();
    for (const LevelStats& r : l.repeats) repeats.push_back(json_of(r));
    level["repeats"] = std::move(repeats);
    out["levels"].push_back(std::move(level));
  }
  const Fit& f = s.fit;
  if (f.valid)
    out["step_time_fit"] = {{"a_seconds", f.a},
                            {"a_error", f.a_error},
                            {"b_seconds", f.b},
                            {"b_error", f.b_error},
                            {"asymptote_tokens_per_second", f.asymptote},
                            {"asymptote_low", f.asymptote_low},
                            {"asymptote_high", f.asymptote_high > 0 ? Json(f.asymptote_high) : Json(nullptr)}};
  else
    out["step_time_fit"] = {{"none", f.why}};
  out["remarks"] = remarks(s);
  out["interrupted"] = s.interrupted;
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace fathom::bench
