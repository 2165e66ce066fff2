// Speed of the text layer: tokenising English (bytes a second), streaming text out, parsing output, encoding chats.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <filesystem>
#include <random>

#include "base/file.h"
#include "text/chat.h"
#include "text/detokenizer.h"
#include "text/json.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace fathom::text {
namespace {

const std::filesystem::path kRoot = FATHOM_SOURCE_DIR;

/// Index 0: the in-box vocabulary; 1: that of DeepSeek-V4, where tests/text/fetch_v4_tokenizer.py has put it.
std::filesystem::path tokenizer_path(int64_t which) {
  return kRoot / (which == 0 ? "models/fairy/tokenizer.json" : "build/v4-tokenizer/tokenizer.json");
}

/// About `bytes` of English: sentences of the golden passages in random order, so that words repeat as in a book but
/// long stretches do not.
std::string english(size_t bytes) {
  const Tokenizer tokenizer = Tokenizer::load(tokenizer_path(0));
  const JsonReading prompts = read_json(read_file(kRoot / "tests/golden/prompts.json"));
  std::vector<std::string> sentences(1);
  for (const char* name : {"passage300", "passage1500", "prefill600"}) {
    std::vector<int32_t> ids;
    for (const JsonValue& id : prompts.value->find(name)->items) ids.push_back(std::stoi(id.text));
    for (const char c : tokenizer.decode(ids, true)) {
      sentences.back() += c;
      if (c == '.' || c == '!' || c == '?') sentences.emplace_back();
    }
  }
  std::mt19937 random(1);
  std::string out;
  while (out.size() < bytes) out += sentences[random() % sentences.size()];
  return out;
}

void load(benchmark::State& state) {
  if (!std::filesystem::exists(tokenizer_path(state.range(0))))
    return state.SkipWithError("the vocabulary is not here");
  for (auto _ : state) benchmark::DoNotOptimize(Tokenizer::load(tokenizer_path(state.range(0))));
}
BENCHMARK(load)->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond);

void encode_english(benchmark::State& state) {
  if (!std::filesystem::exists(tokenizer_path(state.range(0))))
    return state.SkipWithError("the vocabulary is not here");
  const Tokenizer tokenizer = Tokenizer::load(tokenizer_path(state.range(0)));
  const std::string text = english(static_cast<size_t>(state.range(1)));
  std::vector<int32_t> ids;
  for (auto _ : state) {
    ids.clear();
    tokenizer.encode(text, AddedTokens::recognise, ids);
    benchmark::DoNotOptimize(ids.data());
  }
  state.SetBytesProcessed(static_cast<int64_t>(text.size()) * state.iterations());
  state.counters["bytes/token"] = static_cast<double>(text.size()) / static_cast<double>(ids.size());
}
BENCHMARK(encode_english)->ArgsProduct({{0, 1}, {100, 10'000, 10'000'000}})->Unit(benchmark::kMillisecond);

void encode_one_letter(benchmark::State& state) {
  const Tokenizer tokenizer = Tokenizer::load(tokenizer_path(0));
  const std::string text(static_cast<size_t>(state.range(0)), 'a');
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer.encode(text, AddedTokens::recognise));
  state.SetBytesProcessed(static_cast<int64_t>(text.size()) * state.iterations());
}
BENCHMARK(encode_one_letter)->Arg(10'000'000)->Unit(benchmark::kMillisecond);

void detokenize(benchmark::State& state) {
  const Tokenizer tokenizer = Tokenizer::load(tokenizer_path(0));
  const std::vector<int32_t> ids = tokenizer.encode(english(100'000), AddedTokens::recognise);
  for (auto _ : state) {
    Detokenizer stream(tokenizer);
    for (const int32_t id : ids) benchmark::DoNotOptimize(stream.push(id));
  }
  state.SetItemsProcessed(static_cast<int64_t>(ids.size()) * state.iterations());
}
BENCHMARK(detokenize);

/// An answer with a call, in pieces of four bytes as a stream of tokens would bring it.
void parse_stream(benchmark::State& state) {
  std::string text = english(20'000) + "</think>" + english(20'000);
  text +=
      "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"write\">\n<｜DSML｜parameter name=\"text\" string=\"true\">" +
      english(20'000) + "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
  for (auto _ : state) {
    OutputParser parser({.thinking = true});
    for (size_t at = 0; at < text.size(); at += 4)
      benchmark::DoNotOptimize(parser.push(std::string_view(text).substr(at, 4)));
    benchmark::DoNotOptimize(parser.finish());
  }
  state.SetBytesProcessed(static_cast<int64_t>(text.size()) * state.iterations());
}
BENCHMARK(parse_stream)->Unit(benchmark::kMillisecond);

void encode_long_chat(benchmark::State& state) {
  const Tokenizer tokenizer = Tokenizer::load(tokenizer_path(0));
  std::vector<Message> messages;
  for (int i = 0; i < 100; ++i) {
    messages.push_back({.role = "user", .content = english(1000)});
    messages.push_back({.role = "assistant", .content = english(1000)});
  }
  messages.push_back({.role = "user", .content = "And then?"});
  int64_t bytes = 0;
  for (auto _ : state) {
    const auto segments = encode_chat(messages, {});
    benchmark::DoNotOptimize(prompt_ids(segments, tokenizer));
    bytes += static_cast<int64_t>(prompt_text(segments).size());
  }
  state.SetBytesProcessed(bytes);
}
BENCHMARK(encode_long_chat)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace fathom::text
