// What fathom answers to a command line it cannot use: one line, exit status 2; help and version: status 0.
#include <gtest/gtest.h>

#include <algorithm>

#include "cli/process.h"

namespace fathom::cli::testing {
namespace {

bool is_one_line(const std::string& text) {
  return !text.empty() && text.back() == '\n' && std::count(text.begin(), text.end(), '\n') == 1;
}

TEST(Usage, UnknownFlagIsNamedInOneLine) {
  const Finished done = run({"run", fairy(), "--no-such-flag"});
  EXPECT_EQ(done.status, 2);
  EXPECT_TRUE(is_one_line(done.err)) << done.err;
  EXPECT_NE(done.err.find("--no-such-flag"), std::string::npos) << done.err;
  EXPECT_NE(done.err.find("fathom run --help"), std::string::npos) << done.err;
  EXPECT_EQ(done.out, "");
}

TEST(Usage, UnknownCommandIsNamedInOneLine) {
  const Finished done = run({"runn"});
  EXPECT_EQ(done.status, 2);
  EXPECT_TRUE(is_one_line(done.err)) << done.err;
  EXPECT_EQ(done.out, "");
}

TEST(Usage, NoCommandAtAllIsAnError) {
  const Finished done = run(std::vector<std::string>{});
  EXPECT_EQ(done.status, 2);
  EXPECT_TRUE(is_one_line(done.err)) << done.err;
}

TEST(Usage, MissingModelIsAnError) {
  const Finished done = run({"run"});
  EXPECT_EQ(done.status, 2);
  EXPECT_TRUE(is_one_line(done.err)) << done.err;
  EXPECT_NE(done.err.find("MODEL"), std::string::npos) << done.err;
}

TEST(Usage, HelpAndVersionGoToStandardOutput) {
  const Finished help = run({"run", "--help"});
  EXPECT_EQ(help.status, 0);
  EXPECT_NE(help.out.find("MODEL"), std::string::npos);
  EXPECT_EQ(help.err, "");
  const Finished version = run({"--version"});
  EXPECT_EQ(version.status, 0);
  EXPECT_EQ(version.out.rfind("fathom ", 0), 0u) << version.out;
}

TEST(Usage, MisspeltEnvironmentVariableIsRefused) {
  const Finished done = run(Command{.arguments = {"run", fairy(), "x"}, .environment = {"FATHOM_THREADZ=2"}});
  EXPECT_EQ(done.status, 1);
  EXPECT_TRUE(is_one_line(done.err)) << done.err;
  EXPECT_NE(done.err.find("FATHOM_THREADZ"), std::string::npos) << done.err;
  EXPECT_EQ(done.out, "");
}

TEST(Usage, TextFromTheCommandLineCannotWriteToTheTerminal) {
  const Finished done = run({"run", "/nowhere/\x1b[31mred\n"});
  EXPECT_EQ(done.status, 1);
  EXPECT_TRUE(is_one_line(done.err)) << done.err;
  EXPECT_EQ(done.err.find('\x1b'), std::string::npos) << done.err;
}

}  // namespace
}  // namespace fathom::cli::testing
