// `fathom run` as a user meets it: text, bad models, full disks, closed pipes, Ctrl-C.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/process.h"
#include "formats/gzip.h"

namespace fathom::cli::testing {
namespace {

using nlohmann::json;

const std::string kPrompt = "Tell me a story about a king and a dragon.";

std::vector<std::string> chat(const std::filesystem::path& model, std::vector<std::string> more = {}) {
  std::vector<std::string> words = {"run", model.string(), "--chat", kPrompt, "--max-tokens", "12", "--seed", "1"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

bool is_one_line(const std::string& text) {
  return !text.empty() && text.back() == '\n' && std::count(text.begin(), text.end(), '\n') == 1;
}

/// One line, exit status 1, nothing generated, and the line names `part`.
void expect_refused(const Finished& done, const std::string& part) {
  EXPECT_EQ(done.status, 1);
  EXPECT_TRUE(is_one_line(done.err)) << done.err;
  EXPECT_EQ(done.err.rfind("fathom: ", 0), 0u) << done.err;
  EXPECT_NE(done.err.find(part), std::string::npos) << done.err;
  EXPECT_EQ(done.out, "");
}

void overwrite(const std::filesystem::path& path, std::streamoff at, const std::string& bytes) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(at);
  file << bytes;
  ASSERT_TRUE(file.flush());
}

std::string gunzip(const std::filesystem::path& path) {
  GzipReader reader(path);
  std::string out, part(1 << 16, '\0');
  while (const size_t n = reader.read({part.data(), part.size()})) out.append(part, 0, n);
  EXPECT_FALSE(reader.truncated());
  return out;
}

TEST(Run, PrintsTextOnOutputAndSpeedOnError) {
  const Finished done = run(chat(fairy()));
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_GT(done.out.size(), 10u);
  EXPECT_NE(done.err.find("tokens/s"), std::string::npos) << done.err;
  EXPECT_NE(done.err.find("first token"), std::string::npos) << done.err;
}

TEST(Run, SameSeedGivesTheSameText) {
  const std::string first = run(chat(fairy(), {"--temperature", "1"})).out;
  EXPECT_EQ(first, run(chat(fairy(), {"--temperature", "1"})).out);
}

TEST(Run, TakesThePromptFromStandardInput) {
  const Finished argument = run({"run", fairy(), "Once upon a time", "--max-tokens", "8", "--temperature", "0"});
  const Finished piped = run(
      Command{.arguments = {"run", fairy(), "--max-tokens", "8", "--temperature", "0"}, .input = "Once upon a time"});
  EXPECT_EQ(argument.status, 0) << argument.err;
  EXPECT_EQ(piped.status, 0) << piped.err;
  EXPECT_EQ(piped.out, argument.out);
}

TEST(Run, JsonOutputIsOneDocument) {
  const Finished done = run(chat(fairy(), {"--json"}));
  ASSERT_EQ(done.status, 0) << done.err;
  const json answer = json::parse(done.out);
  EXPECT_TRUE(answer.is_object());
}

TEST(Run, ProfileIsATraceOfEveryStep) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "p.json.gz";
  const Finished done = run(chat(fairy(), {"--profile", path}));
  ASSERT_EQ(done.status, 0) << done.err;
  const json trace = json::parse(gunzip(path));
  int steps = 0, ops = 0;
  for (const json& event : trace["traceEvents"]) {
    steps += event["name"].get<std::string>().rfind("step ", 0) == 0;
    ops += event.value("cat", "") == "cpu_op" && event["args"].contains("bytes") && event["args"].contains("flops");
  }
  EXPECT_GE(steps, 12);  // a prefill and 11 or 12 decodes
  EXPECT_GT(ops, steps * 20);
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) EXPECT_EQ(entry.path(), path);
}

TEST(Run, QuietLeavesOutTheReportAndKeepsTheText) {
  const Finished done = run(chat(fairy(), {"--quiet"}));
  EXPECT_EQ(done.status, 0);
  EXPECT_EQ(done.err, "");
  EXPECT_EQ(done.out, run(chat(fairy())).out);
}

TEST(Run, DoesNotDependOnTheNumberOfThreads) {
  const auto with = [](const char* threads) {
    return run({"run", fairy(), "Once upon a time", "-n", "24", "--temperature", "0", "--threads", threads}).out;
  };
  EXPECT_EQ(with("1"), with("2"));
  EXPECT_EQ(with("1"), with("5"));
}

TEST(Run, StatsRankTheOperations) {
  const Finished done = run(chat(fairy(), {"--stats"}));
  ASSERT_EQ(done.status, 0) << done.err;
  for (const char* part : {"linear_fp8", "experts", "sparse_attention", "share", "calls"})
    EXPECT_NE(done.err.find(part), std::string::npos) << done.err;
}

TEST(RunRefuses, PathThatIsNotThere) {
  expect_refused(run(chat("/nowhere/model")), "/nowhere/model");
}

TEST(RunRefuses, FolderThatIsNoModel) {
  const TemporaryFolder folder;
  expect_refused(run(chat(folder.path())), "config.json");
}

TEST(RunRefuses, TruncatedShardByName) {
  const TemporaryFolder folder;
  const auto model = copy_of_fairy(folder);
  std::filesystem::resize_file(model / "model-00002-of-00004.safetensors", 100000);
  expect_refused(run(chat(model)), "model-00002-of-00004.safetensors");
}

TEST(RunRefuses, EmptyShardByName) {
  const TemporaryFolder folder;
  const auto model = copy_of_fairy(folder);
  std::filesystem::resize_file(model / "model-00001-of-00004.safetensors", 0);
  expect_refused(run(chat(model)), "model-00001-of-00004.safetensors");
}

TEST(RunRefuses, AbsurdHeaderLength) {
  const TemporaryFolder folder;
  const auto model = copy_of_fairy(folder);
  overwrite(model / "model-00003-of-00004.safetensors", 0, std::string(8, '\xff'));
  expect_refused(run(chat(model)), "model-00003-of-00004.safetensors");
}

TEST(RunRefuses, MissingShardByName) {
  const TemporaryFolder folder;
  const auto model = copy_of_fairy(folder);
  std::filesystem::remove(model / "model-00004-of-00004.safetensors");
  expect_refused(run(chat(model)), "model-00004-of-00004.safetensors");
}

TEST(RunRefuses, BrokenConfigAndTokenizer) {
  const TemporaryFolder folder;
  const auto model = copy_of_fairy(folder);
  write_text(model / "tokenizer.json", "{\"model\": ");
  expect_refused(run(chat(model)), "tokenizer.json");
  write_text(model / "config.json", "not json");
  expect_refused(run(chat(model)), "config.json");
}

TEST(RunRefuses, OtherArchitectureByName) {
  const TemporaryFolder folder;
  const auto model = copy_of_fairy(folder);
  std::ifstream in(model / "config.json");
  json config = json::parse(in);
  config["model_type"] = "deepseek_v3";
  config["architectures"] = {"DeepseekV3ForCausalLM"};
  write_text(model / "config.json", config.dump());
  expect_refused(run(chat(model)), "DeepSeek-V3");
}

TEST(RunRefuses, ProfileOnAFullDisk) {
  const Finished done = run(chat(fairy(), {"--profile", "/dev/full"}));
  EXPECT_EQ(done.status, 1);
  EXPECT_NE(done.err.find("/dev/full"), std::string::npos) << done.err;
  EXPECT_NE(done.err.find("No space left"), std::string::npos) << done.err;
}

TEST(RunRefuses, ProfileInAFolderThatIsNotThereBeforeAnythingIsGenerated) {
  expect_refused(run(chat(fairy(), {"--profile", "/nowhere/p.json"})), "/nowhere/p.json");
}

TEST(RunRefuses, NumbersOutsideTheirRange) {
  for (const auto& [flag, value] : std::vector<std::pair<std::string, std::string>>{
           {"--temperature", "-1"}, {"--top-p", "1.5"}, {"--max-tokens", "0"}, {"--max-tokens", "x"}}) {
    const Finished done = run({"run", fairy(), "x", flag, value});
    EXPECT_EQ(done.status, 2) << flag << " " << value;
    EXPECT_TRUE(is_one_line(done.err)) << done.err;
    EXPECT_NE(done.err.find(flag), std::string::npos) << done.err;
  }
}

TEST(RunEnds, WithAnErrorWhenTheTextCannotBeWritten) {
  const Finished done = run(Command{.arguments = chat(fairy()), .output_path = "/dev/full"});
  EXPECT_EQ(done.status, 1);
  EXPECT_TRUE(is_one_line(done.err)) << done.err;
  EXPECT_NE(done.err.find("standard output"), std::string::npos) << done.err;
}

TEST(RunEnds, SoonWhenNobodyReads) {
  std::vector<std::string> words = {"run", fairy(), "--chat", kPrompt, "--max-tokens", "4000", "--ignore-eos"};
  const Finished done = run(Command{.arguments = words, .close_output = true, .limit = std::chrono::seconds(20)});
  EXPECT_EQ(done.status, 1) << done.err;
  EXPECT_TRUE(is_one_line(done.err)) << done.err;
  EXPECT_NE(done.err.find("standard output"), std::string::npos) << done.err;
}

TEST(RunEnds, WithStatus130AfterAnInterruptAndKeepsTheProfile) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "p.json";
  std::vector<std::string> words = {"run",  fairy(),        "--chat",    kPrompt, "--max-tokens",
                                    "4000", "--ignore-eos", "--profile", path};
  const Finished done = run(Command{.arguments = words, .interrupt_after = " ", .limit = std::chrono::seconds(20)});
  EXPECT_EQ(done.status, 130) << done.err;
  EXPECT_NE(done.out, "");
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) EXPECT_EQ(entry.path(), path);
  EXPECT_GT(json::parse(std::ifstream(path))["traceEvents"].size(), 10u);
}

}  // namespace
}  // namespace fathom::cli::testing
