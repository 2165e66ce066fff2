// `fathom bench` over several depths of drafts and rates of acceptance, models of each kind of draft, profiles.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <regex>

#include "base/file.h"
#include "cli/process.h"

namespace fathom::cli::testing {
namespace {

std::vector<std::string> bench(std::vector<std::string> more) {
  std::vector<std::string> words = {"bench", "--device",      "cpu", "--context",  "100", "--output",
                                    "8",     "--concurrency", "1",   "--requests", "2",   "--no-warm-up"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(BenchDrafts, ComparesEveryDepthWithEveryAcceptanceOnOneModel) {
  const Finished done = run(bench(
      {"--synthetic", "fairy,layers=3,drafts=dspark", "--speculate", "off,2,auto", "--draft-acceptance", "0.9,0"}));
  ASSERT_EQ(done.status, 0) << done.err;
  const size_t table = done.out.find("Tokens/s of whole runs");
  ASSERT_NE(table, std::string::npos) << done.out;
  const std::string lines = done.out.substr(table);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 7) << lines;  // two of heading, off, and two by two
  EXPECT_EQ(done.err.find("loading weights"), done.err.rfind("loading weights")) << "loaded more than once";
}

TEST(BenchDrafts, ListsThatAreNoneAreUsageErrors) {
  const std::vector<std::vector<std::string>> wrong = {
      {"--synthetic", "fairy", "--speculate", "off,,2"},
      {"--synthetic", "fairy", "--speculate", "2", "--draft-acceptance", "1.5"},
      {"--synthetic", "fairy", "--speculate", "2", "--draft-acceptance", "0.5,x"},
      {"--synthetic", "fairy", "--speculate", "off", "--draft-acceptance", "0.5"},
      {"--synthetic", "fairy", "--speculate", "2", "--draft-acceptance", ""},
      {"--synthetic", "fairy", "--speculate", "off,2"},  // the context is one that nobody computed
      {"--synthetic", "fairy", "--speculate", "off,2", "--draft-acceptance", "0.5", "--json", "x.json"}};
  for (const auto& words : wrong) {
    const Finished done = run(bench(words));
    EXPECT_NE(done.status, 0);
    EXPECT_EQ(done.out, "");
    EXPECT_EQ(std::count(done.err.begin(), done.err.end(), '\n'), 1) << done.err;
  }
}

TEST(BenchDrafts, SayWhatAModelHasOfThem) {
  const auto with = [](const std::string& model, const std::string& depth) {
    return run(bench({"--synthetic", model, "--speculate", depth, "--draft-acceptance", "0.5"}));
  };
  const Finished none = with("fairy,layers=3", "2");
  EXPECT_EQ(none.status, 1);
  EXPECT_NE(none.err.find("has no draft stages"), std::string::npos) << none.err;
  const Finished listed = with("fairy,layers=3", "off,2");
  EXPECT_EQ(listed.status, 1);
  EXPECT_EQ(listed.out, "") << "measured before it was refused";
  const Finished mtp = with("fairy,layers=3,drafts=mtp", "3");
  EXPECT_EQ(mtp.status, 0) << mtp.err;
  EXPECT_NE(mtp.err.find("the MTP block of this model drafts one token"), std::string::npos) << mtp.err;
  EXPECT_NE(mtp.out.find("drafts right"), std::string::npos) << mtp.out;
  const Finished larger = with("fairy,layers=3,drafts=mtp", "3,1");
  EXPECT_EQ(larger.status, 0) << larger.err;
  EXPECT_NE(larger.err.find("the MTP block of this model drafts one token"), std::string::npos) << larger.err;
  for (const char* depth : {"auto", "off,auto"}) {
    const Finished optional = with("fairy,layers=3", depth);
    EXPECT_EQ(optional.status, 0) << optional.err;
    const size_t at = optional.err.find("runs without speculation");
    EXPECT_NE(at, std::string::npos) << optional.err;
    EXPECT_EQ(at, optional.err.rfind("runs without speculation")) << optional.err;
  }
}

TEST(BenchDrafts, NamesTheRateOfAnOpenLoop) {
  const Finished done =
      run({"bench", "--device", "cpu", "--synthetic", "fairy,layers=3,drafts=dspark", "--input", "8", "--output", "4",
           "--rate", "200", "--requests", "4", "--no-warm-up", "--speculate", "off,2"});
  ASSERT_EQ(done.status, 0) << done.err;
  EXPECT_NE(done.out.find("load 200/s"), std::string::npos) << done.out;
}

TEST(BenchDrafts, CountsProposalsInTheReport) {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "report.json";
  const Finished done = run(bench(
      {"--synthetic", "fairy,layers=3,drafts=dspark", "--speculate", "2", "--draft-acceptance", "0", "--json", file}));
  ASSERT_EQ(done.status, 0) << done.err;
  const std::string report = read_file(file);
  std::smatch proposals;
  ASSERT_TRUE(std::regex_search(report, proposals, std::regex("\"draft_proposals\": *([0-9]+)"))) << report;
  EXPECT_GT(std::stoll(proposals[1]), 0);
}

TEST(BenchProfile, IsWrittenOnAProcessorToo) {
  const TemporaryFolder folder;
  const Finished done =
      run(bench({"--synthetic", "fairy,layers=3", "--profile", std::string(folder.path() / "trace.json.gz")}));
  ASSERT_EQ(done.status, 0) << done.err;
  EXPECT_NE(done.err.find("20 of 20 steps recorded"), std::string::npos) << done.err;
  EXPECT_GT(std::filesystem::file_size(folder.path() / "trace-b1.json.gz"), 1000u);
}

}  // namespace
}  // namespace fathom::cli::testing
