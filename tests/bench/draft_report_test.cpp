// What reports of a load test say of drafts.
#include <gtest/gtest.h>

#include "bench/server_counts.h"
#include "bench/sweep.h"

namespace fathom::bench {
namespace {

std::string report_of(const DraftCounts& d) {
  LevelStats stats;
  stats.requests = 1, stats.drafts = d;
  Sweep s;
  Level level;
  level.concurrency = 4;
  level.repeats.push_back(stats);
  s.levels.push_back(level);
  return text_report(s);
}

DraftCounts counted() {
  DraftCounts d;
  d.steps = 200, d.seconds = 10, d.generated = 500;
  d.proposals = 200, d.offered = 400, d.accepted = 300;
  d.offered_at = {200, 200, 0}, d.accepted_at = {180, 120, 0};
  return d;
}

TEST(DraftReport, HasStepsTokensAStepAndSharesByPlace) {
  EXPECT_NE(report_of(counted()).find("Load 4: 20.0 steps/s, 2.50 tokens a step; 300 of 400 drafts right, by place 90, "
                                      "60 %."),
            std::string::npos)
      << report_of(counted());
}

TEST(DraftReport, SaysWhatTheEngineSaysOfDraftsThatAreNeverRight) {
  DraftCounts d = counted();
  EXPECT_EQ(report_of(d).find("draft stages"), std::string::npos);
  d.accepted = 0, d.accepted_at = {0, 0, 0};
  EXPECT_NE(report_of(d).find("- Load 4: of 400 drafted tokens not one was right: the draft stages do not belong to "
                              "this model.\n"),
            std::string::npos)
      << report_of(d);
}

TEST(DraftReport, BlamesNoDraftsThatWereToBeWrong) {
  DraftCounts d = counted();
  d.accepted = 0, d.accepted_at = {0, 0, 0}, d.forced = true;
  EXPECT_EQ(report_of(d).find("draft stages"), std::string::npos) << report_of(d);
}

TEST(DraftReport, SaysSoWhenEveryProposalFailed) {
  const DraftCounts before = read_counts("fathom_engine_steps_total 5\nfathom_draft_faults_total{a=\"b\"} 3\n");
  const DraftCounts d = difference(before, read_counts("fathom_engine_steps_total 500\n"
                                                       "fathom_draft_faults_total{a=\"b\"} 303\n"
                                                       "vllm:spec_decode_num_drafts_total{a=\"b\"} 0\n"));
  EXPECT_EQ(d.faults, 300);
  EXPECT_NE(report_of(d).find("300 proposals of drafts failed: the draft stages are damaged"), std::string::npos)
      << report_of(d);
}

}  // namespace
}  // namespace fathom::bench
