// docs/trace-reports.md lists what users reported and the test of each: the list must stay complete and true.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <sstream>
#include <string>

#include "base/file.h"

namespace fathom::trace {
namespace {

namespace fs = std::filesystem;

std::set<std::string> registered_tests() {
  std::set<std::string> out;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const testing::TestSuite& suite = *all.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t)
      out.insert(std::string(suite.name()) + "." + suite.GetTestInfo(t)->name());
  }
  return out;
}

/// The texts between back quotes that begin with a capital and hold a dot or name a script: tests.
std::set<std::string> tests_named_in(const std::string& line) {
  std::set<std::string> out;
  for (size_t at = line.find('`'); at != std::string::npos;) {
    const size_t end = line.find('`', at + 1);
    if (end == std::string::npos) break;
    const std::string text = line.substr(at + 1, end - at - 1);
    const bool test = !text.empty() && text[0] >= 'A' && text[0] <= 'Z' && text.find('.') != std::string::npos &&
                      text.find(' ') == std::string::npos;
    if (test || text.starts_with("tests/")) out.insert(text);
    at = line.find('`', end + 1);
  }
  return out;
}

TEST(ReportsDocument, EveryReportHasATestAndEveryTestNamedExists) {
  const std::set<std::string> tests = registered_tests();
  std::stringstream lines(read_file(FATHOM_SOURCE_DIR "/docs/trace-reports.md"));
  std::set<int> reports;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("| ")) continue;
    const auto named = tests_named_in(line);
    for (const std::string& test : named) {
      if (test.starts_with("tests/"))
        EXPECT_TRUE(fs::exists(fs::path(FATHOM_SOURCE_DIR) / test)) << test;
      else
        EXPECT_TRUE(tests.contains(test)) << test;
    }
    if (line[2] < '0' || line[2] > '9') continue;
    reports.insert(std::stoi(line.substr(2)));
    EXPECT_FALSE(named.empty()) << line;
  }
  EXPECT_EQ(reports.size(), 52u);
  EXPECT_EQ(*reports.rbegin(), 52);
}

}  // namespace
}  // namespace fathom::trace
