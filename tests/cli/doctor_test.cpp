// fathom doctor as a user calls it, on a machine with or without a GPU.
#include <gtest/gtest.h>

#include <algorithm>

#include "cli/process.h"

namespace fathom::cli::testing {
namespace {

bool is_one_line(const std::string& text) {
  return !text.empty() && std::count(text.begin(), text.end(), '\n') == 1;
}

TEST(Doctor, WithoutNvmlTheRestIsToldAndNothingIsBad) {
  const Finished done = run({"doctor", "--quick", "--nvml", "/nowhere/libnvidia-ml.so.1"});
  EXPECT_EQ(done.err, "");
  EXPECT_NE(done.out.find("no NVML: /nowhere/libnvidia-ml.so.1"), std::string::npos) << done.out;
  EXPECT_NE(done.out.find("CPU operations use"), std::string::npos) << done.out;
  EXPECT_NE(done.out.find("remedy:"), std::string::npos) << done.out;
}

TEST(Doctor, WritesTheSameAsJsonAndMarkdown) {
  const TemporaryFolder folder;
  const Finished done = run({"doctor", "--quick", "--json", "-", "--md", folder.path() / "doctor.md"});
  EXPECT_EQ(done.out.rfind("{\n  \"schema\": \"fathom-doctor-1\"", 0), 0u) << done.out.substr(0, 80);
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "doctor.md"));
}

TEST(Doctor, JudgesAProfileOfTheInBoxModelBesideItsBound) {
  const TemporaryFolder folder;
  const std::string trace = folder.path() / "profile.json.gz";
  ASSERT_EQ(run({"run", fairy(), "Once", "-n", "24", "--ignore-eos", "-q", "--profile", trace}).status, 0);
  const Finished done = run({"doctor", fairy(), "--quick", "--trace", trace, "--gpu", "h200"});
  EXPECT_EQ(done.status, 0) << done.out << done.err;
  EXPECT_NE(done.out.find("of it is reached"), std::string::npos) << done.out;
  for (const char* part :
       {"attention", "experts", "dense products", "glue", "communication", "launch gaps", "host idle"})
    EXPECT_NE(done.out.find(part), std::string::npos) << part;
}

TEST(Doctor, WrongUseIsOneLine) {
  const std::vector<std::vector<std::string>> wrong = {{"doctor", "--batch", "4"},
                                                       {"doctor", "--gpu", "h200"},
                                                       {"doctor", "--concurrency", "4"},
                                                       {"doctor", "--no-such"}};
  for (const auto& arguments : wrong) {
    const Finished done = run(arguments);
    EXPECT_EQ(done.status, 2) << arguments[1];
    EXPECT_TRUE(is_one_line(done.err)) << done.err;
  }
}

TEST(Doctor, BadInputIsOneLine) {
  const std::vector<std::vector<std::string>> bad = {{"doctor", "no-such-model"},
                                                     {"doctor", "--quick", "--trace", "/nowhere.json"},
                                                     {"doctor", "--quick", "--url", "http://127.0.0.1:1"},
                                                     {"doctor", "--quick", "--url", "ftp://x"},
                                                     {"doctor", "--quick", "--json", "/nowhere/x.json"}};
  for (const auto& arguments : bad) {
    const Finished done = run(arguments);
    EXPECT_EQ(done.status, 1) << arguments[1];
    EXPECT_TRUE(is_one_line(done.err)) << done.err;
  }
}

}  // namespace
}  // namespace fathom::cli::testing
