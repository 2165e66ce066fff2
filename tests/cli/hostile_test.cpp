// What a user, a script or a broken disk can do to `fathom run` and `fathom check`: each case gives one clear line and
// the documented exit status, and nothing is taken for something else.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/process.h"

namespace fathom::cli::testing {
namespace {

using nlohmann::json;

bool is_one_line(const std::string& text) {
  return !text.empty() && text.back() == '\n' && std::count(text.begin(), text.end(), '\n') == 1;
}

/// One line that begins with "fathom: " and names every part; nothing on standard output.
void expect_one_line(const Finished& done, int status, const std::vector<std::string>& parts) {
  EXPECT_EQ(done.status, status) << done.err;
  EXPECT_TRUE(is_one_line(done.err)) << done.err;
  EXPECT_EQ(done.err.rfind("fathom: ", 0), 0u) << done.err;
  EXPECT_EQ(done.err.find("internal error"), std::string::npos) << done.err;
  for (const std::string& part : parts) EXPECT_NE(done.err.find(part), std::string::npos) << part << ": " << done.err;
  EXPECT_EQ(done.out, "");
}

std::vector<std::string> words(const std::filesystem::path& model, std::vector<std::string> more = {}) {
  std::vector<std::string> all = {"run", model.string(), "Once upon a time", "-n", "4", "--temperature", "0"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

json run_json(std::vector<std::string> arguments) {
  arguments.push_back("--json");
  const Finished done = run(std::move(arguments));
  EXPECT_EQ(done.status, 0) << done.err;
  return json::parse(done.out);
}

/// Fairy with a config field that fathom reports on standard error when it has loaded the model.
std::filesystem::path talking_fairy(const TemporaryFolder& folder) {
  const auto model = copy_of_fairy(folder);
  std::ifstream in(model / "config.json");
  json config = json::parse(in);
  config["field_of_\x1b[31mtests"] = 1;
  write_text(model / "config.json", config.dump());
  return model;
}
const std::string kLoaded = "does not know";

TEST(Numbers, ThatAreNoneOrTooLargeAreRefusedAndNeverCut) {
  for (const auto& [flag, value] : std::vector<std::pair<std::string, std::string>>{{"--temperature", "nan"},
                                                                                    {"--min-p", "NaN"},
                                                                                    {"--top-p", "inf"},
                                                                                    {"--top-p", "1e400"},
                                                                                    {"--seed", "99999999999999999999"},
                                                                                    {"--seed", "-1"},
                                                                                    {"--seed", "1.5"},
                                                                                    {"--max-tokens", "1e3"},
                                                                                    {"--max-tokens", "0x10"},
                                                                                    {"--chunk", ""},
                                                                                    {"--threads", "2 "}}) {
    expect_one_line(run(words(fairy(), {flag + "=" + value})), 2, {flag, "fathom run --help"});
  }
  EXPECT_EQ(run_json({"run", fairy(), "x", "--max-tokens", "010"})["usage"]["completion_tokens"], 10);
}

TEST(Flags, ThatDoNotFitTogetherAreUsageErrors) {
  expect_one_line(run(words(fairy(), {"--think", "low"})), 2, {"--think", "--chat"});
  expect_one_line(run(words(fairy(), {"--system", "x"})), 2, {"--system", "--chat"});
  expect_one_line(run(words(fairy(), {"--profile", ""})), 2, {"--profile"});
  expect_one_line(run(words(fairy(), {"--context", "16385"})), 1, {"--context 16385", "16384"});
}

TEST(Prompt, ThatIsNotUtf8IsRefused) {
  expect_one_line(run({"run", fairy(), "caf\xe9"}), 1, {"prompt", "UTF-8"});
  expect_one_line(run({"run", fairy(), "--chat", "caf\xe9"}), 1, {"prompt", "UTF-8"});
  expect_one_line(run({"run", fairy(), "--chat", "x", "--system", "\xff"}), 1, {"--system", "UTF-8"});
  expect_one_line(run(Command{.arguments = {"run", fairy()}, .input = "caf\xe9"}), 1, {"prompt", "UTF-8"});
}

TEST(Prompt, MayBeEmptyOnlyWhenSaid) {
  expect_one_line(run({"run", fairy()}), 1, {"standard input is empty"});
  EXPECT_EQ(run_json({"run", fairy(), "", "-n", "2"})["usage"]["prompt_tokens"], 1);
}

TEST(Prompt, LongerThanTheContextIsRefusedWithBothNumbers) {
  std::string text;
  while (text.size() < 90000) text += "Once upon a time there was a king. ";
  const Finished done = run(Command{.arguments = {"run", fairy(), "-"}, .input = text});
  expect_one_line(done, 1, {"the prompt has 2", "16384"});
}

TEST(StandardInput, ThatCannotBeReadIsAnErrorAndNoEmptyPrompt) {
  expect_one_line(run(Command{.arguments = {"run", fairy()}, .input_path = "/tmp"}), 1, {"standard input"});
  expect_one_line(run(Command{.arguments = {"run", fairy()}, .closed = {0}}), 1, {"standard input"});
}

TEST(StandardOutput, ThatIsFullOrClosedIsAnErrorForEveryCommand) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--help"}, {"run", "--help"}, {"--version"}, {"check", fairy()}})
    expect_one_line(run(Command{.arguments = arguments, .output_path = "/dev/full"}), 1, {"standard output"});
  expect_one_line(run(Command{.arguments = words(fairy()), .closed = {1}}), 1, {"standard output"});
}

TEST(StandardError, ThatIsClosedDoesNotEndUpInTheProfile) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "p.json";
  EXPECT_EQ(run(Command{.arguments = words(fairy(), {"--profile", path}), .closed = {0, 1, 2}}).status, 1);
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_EQ(run(Command{.arguments = words(fairy(), {"--profile", path}), .closed = {2}}).status, 0);
  EXPECT_TRUE(json::parse(std::ifstream(path)).contains("traceEvents"));
}

TEST(Interrupt, WhileTheTerminalIsReadEndsAtOnce) {
  const TemporaryFolder folder;
  const Finished done = run(Command{.arguments = {"run", talking_fairy(folder)},
                                    .input = "Once",
                                    .keep_input_open = true,
                                    .interrupt_after = kLoaded,
                                    .limit = std::chrono::seconds(20)});
  EXPECT_EQ(done.status, 130) << done.err;
  EXPECT_NE(done.err.find("fathom: interrupted while reading"), std::string::npos) << done.err;
  EXPECT_EQ(done.err.find('\x1b'), std::string::npos) << "a name from a file writes to the terminal";
}

TEST(Interrupt, BeforeTheFirstTokenStillGivesValidJson) {
  const TemporaryFolder folder;
  std::string text;
  while (text.size() < 40000) text += "Once upon a time there was a king. ";
  const std::string model = talking_fairy(folder).string();
  Finished done;
  // The weights are loaded behind the sign that the interrupt waits for; reading the prompt takes seconds.
  for (int pause = 300; pause < 5000; pause *= 2) {
    done = run(Command{.arguments = {"run", model, text, "--json", "--chunk", "16"},
                       .interrupt_after = kLoaded,
                       .interrupt_pause = std::chrono::milliseconds(pause),
                       .limit = std::chrono::seconds(60)});
    EXPECT_EQ(done.status, 130) << done.err;
    if (done.err.find("interrupted while loading weights") == std::string::npos) break;
    EXPECT_EQ(done.out, "");
  }
  const json answer = json::parse(done.out);
  EXPECT_EQ(answer["finish_reason"], "cancelled");
  EXPECT_EQ(answer["timing"]["prefill_tokens_per_second"], 0);
  EXPECT_NE(done.err.find("no token yet"), std::string::npos) << done.err;
}

TEST(Json, NamesTheModelByItsFolderHoweverThatIsWritten) {
  for (const std::string suffix : {"", "/", "/.", "/../fairy//"})
    EXPECT_EQ(run_json(words(fairy().string() + suffix))["model"], "fairy") << suffix;
}

TEST(Json, SaysStopWhenTheLastTokenMeetsAStopString) {
  for (const char* most : {"1", "9"}) {
    const json answer =
        run_json({"run", fairy(), "Once upon a time", "-n", most, "--temperature", "0", "--stop", "there"});
    EXPECT_EQ(answer["text"], " ");
    EXPECT_EQ(answer["finish_reason"], "stop") << most;
    EXPECT_EQ(answer["usage"]["completion_tokens"], 1);
  }
}

TEST(Json, BytesOfATokenDoNotDependOnHowThePromptWasCut) {
  const auto bytes = [](const char* chunk) {
    return run_json(words(fairy(), {"--chunk", chunk}))["timing"]["decode_bytes_per_token"].get<double>();
  };
  EXPECT_GT(bytes("512"), 1e6);
  EXPECT_EQ(bytes("512"), bytes("1"));
}

TEST(GenerationConfig, ThatIsWrongIsNamedWithItsFile) {
  const TemporaryFolder folder;
  const auto model = copy_of_fairy(folder);
  const auto path = model / "generation_config.json";
  for (const char* text : {"{\"temperature\": -1}", "{\"temperature\": \"hot\"}", "{\"top_p\": 0}", "{\"top_k\": 1.5}",
                           "{\"do_sample\": 1}", "{\"repetition_penalty\": 0}", "[]", ""}) {
    write_text(path, text);
    expect_one_line(run(words(model)), 1, {"generation_config.json"});
  }
  write_text(path, "{\"top_k\": null, \"max_new_tokens\": 5}");
  EXPECT_EQ(run(words(model)).status, 0);
  std::filesystem::remove(path);
  std::filesystem::create_symlink("generation_config.json", path);
  expect_one_line(run(words(model)), 1, {"generation_config.json"});
}

TEST(Check, RefusesGoldensThatAreNotThereBeforeItWorks) {
  expect_one_line(run({"check", fairy(), "--goldens", "/nowhere"}), 1, {"/nowhere"});
  const TemporaryFolder folder;
  expect_one_line(run({"check", fairy(), "--goldens", folder.path()}), 1, {"e2e_"});
}

/// A safetensors file of one-dimensional I32 and F32 tensors.
void write_golden(const std::filesystem::path& path,
                  const std::vector<std::pair<std::string, std::vector<int32_t>>>& ints, size_t logits,
                  size_t margins) {
  json header;
  std::string data;
  const auto add = [&](const std::string& name, const char* dtype, const void* bytes, size_t count) {
    header[name] = {{"dtype", dtype}, {"shape", {count}}, {"data_offsets", {data.size(), data.size() + 4 * count}}};
    data.append(static_cast<const char*>(bytes), 4 * count);
  };
  for (const auto& [name, values] : ints) add(name, "I32", values.data(), values.size());
  const std::vector<float> zeros(std::max(logits, margins) + 1, 1.0f);
  add("logits", "F32", zeros.data(), logits);
  add("greedy_margin", "F32", zeros.data(), margins);
  const std::string text = header.dump();
  const uint64_t length = text.size();
  write_text(path, std::string(reinterpret_cast<const char*>(&length), 8) + text + data);
}

TEST(Check, FailsOnGoldensThatDoNotFitTheModelAndReadsNothingOutside) {
  using Ints = std::vector<std::pair<std::string, std::vector<int32_t>>>;
  struct Case {
    Ints ints;
    size_t logits, margins;
  };
  const std::vector<Case> cases = {
      {{{"ids", {}}, {"logit_positions", {}}, {"greedy", {}}}, 0, 0},
      {{{"ids", {0, -5}}, {"logit_positions", {1}}, {"greedy", {}}}, 2048, 0},
      {{{"ids", {0, 99999}}, {"logit_positions", {1}}, {"greedy", {}}}, 2048, 0},
      {{{"ids", {0, 5}}, {"logit_positions", {2}}, {"greedy", {}}}, 2048, 0},
      {{{"ids", {0, 5}}, {"logit_positions", {-1}}, {"greedy", {}}}, 2048, 0},
      {{{"ids", {0, 5}}, {"logit_positions", {1}}, {"greedy", {7}}}, 2048, 0},
      {{{"ids", {0, 5}}, {"logit_positions", {1}}, {"greedy", {4096}}}, 2048, 1},
      {{{"ids", {0, 5}}, {"logit_positions", {1}}, {"greedy", {}}}, 2047, 0},
  };
  const TemporaryFolder folder;
  for (size_t i = 0; i < cases.size(); ++i)
    write_golden(folder.path() / ("e2e_" + std::to_string(i) + ".safetensors"), cases[i].ints, cases[i].logits,
                 cases[i].margins);
  const Finished done = run({"check", fairy(), "--goldens", folder.path()});
  EXPECT_EQ(done.status, 1) << done.err;
  EXPECT_EQ(done.err, "");
  EXPECT_NE(done.out.find("6 passed, 8 failed, 1 skipped"), std::string::npos) << done.out;
}

}  // namespace
}  // namespace fathom::cli::testing
