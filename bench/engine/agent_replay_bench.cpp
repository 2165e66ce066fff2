// Replays the conversation of an agent on the in-box model, once with the prefix cache and once without: tokens
// computed and time to the first token of each turn, side by side. The replies must be the same.
//
// usage: bench_engine [TURNS] [SYSTEM_TOKENS] [REPLY_TOKENS]
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "base/error.h"
#include "engine/engine.h"
#include "formats/checkpoint.h"

namespace fathom {
namespace {

using Clock = std::chrono::steady_clock;

struct Turn {
  int64_t prompt = 0, computed = 0, cached = 0;
  double first_token_ms = 0;
  std::vector<int32_t> reply;
};

/// Tokens of turn `turn`: a tool's output, or the system prompt with its tools (turn 0).
std::vector<int32_t> input(int turn, int64_t count) {
  std::vector<int32_t> out;
  for (int64_t i = 0; i < count; ++i)
    out.push_back(static_cast<int32_t>(3 + (turn * int64_t{577} + i * i * 7 + i * 31) % 1900));
  return out;
}

Turn run_turn(Engine& engine, const std::vector<int32_t>& conversation, int64_t reply_tokens) {
  GenerationRequest request;
  request.prompt = conversation;
  request.max_tokens = reply_tokens;
  request.sampling.temperature = 0;
  const int64_t before = engine.stats().prompt_tokens;
  Turn turn;
  turn.prompt = static_cast<int64_t>(conversation.size());
  const auto start = Clock::now();
  engine.add(std::move(request));
  while (engine.step([&](const GenerationEvent& e) {
    if (!e.error.empty()) throw std::runtime_error(e.error);
    if (turn.reply.empty())
      turn.first_token_ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    turn.reply.push_back(e.token.token);
    turn.cached = e.cached_tokens;
  })) {
  }
  turn.computed = engine.stats().prompt_tokens - before;
  return turn;
}

int replay(int turns, int64_t system_tokens, int64_t reply_tokens) {
  const Checkpoint checkpoint(std::filesystem::path(FATHOM_SOURCE_DIR) / "models/fairy");
  const Weights weights = load_weights(checkpoint, make_host_memory());
  EngineOptions with;
  with.max_sequences = 1;
  EngineOptions without = with;
  without.prefix_cache = false;
  Engine cached(checkpoint.config(), weights, with), plain(checkpoint.config(), weights, without);

  fmt::print("                        computed tokens         time to first token, ms\n");
  fmt::print(" turn  prompt   cached    with  without      with   without     ratio\n");
  std::vector<int32_t> conversation = input(0, system_tokens);
  Turn sum_with, sum_without;
  for (int turn = 1; turn <= turns; ++turn) {
    const auto tool_output = input(turn, 120 + 70 * (turn % 4));
    conversation.insert(conversation.end(), tool_output.begin(), tool_output.end());
    if (static_cast<int64_t>(conversation.size()) + reply_tokens >= checkpoint.config().max_positions)
      fail("turn {} has {} tokens, the model has {} positions: ask for fewer", turn, conversation.size(),
           checkpoint.config().max_positions);
    const Turn a = run_turn(cached, conversation, reply_tokens), b = run_turn(plain, conversation, reply_tokens);
    if (a.reply != b.reply) fail("turn {}: the replies with and without the cache differ", turn);
    fmt::print("{:5} {:7} {:8} {:7} {:8} {:9.1f} {:9.1f} {:9.1f}\n", turn, a.prompt, a.cached, a.computed, b.computed,
               a.first_token_ms, b.first_token_ms, b.first_token_ms / a.first_token_ms);
    sum_with.computed += a.computed, sum_with.first_token_ms += a.first_token_ms;
    sum_without.computed += b.computed, sum_without.first_token_ms += b.first_token_ms;
    conversation.insert(conversation.end(), a.reply.begin(), a.reply.end());
  }
  fmt::print("  sum                  {:7} {:8} {:9.1f} {:9.1f} {:9.1f}\nreplies of all turns are the same\n",
             sum_with.computed, sum_without.computed, sum_with.first_token_ms, sum_without.first_token_ms,
             sum_without.first_token_ms / sum_with.first_token_ms);
  return 0;
}

int64_t number(int count, char** arguments, int which, int64_t otherwise, int64_t most) {
  if (which >= count) return otherwise;
  char* end = nullptr;
  const long long value = std::strtoll(arguments[which], &end, 10);
  if (*arguments[which] == 0 || *end != 0 || value < 1 || value > most)
    fail("'{}' must be a number from 1 to {}", printable(arguments[which]), most);
  return value;
}

}  // namespace
}  // namespace fathom

int main(int count, char** arguments) {
  try {
    return fathom::replay(static_cast<int>(fathom::number(count, arguments, 1, 8, 1000)),
                          fathom::number(count, arguments, 2, 1200, 16000),
                          fathom::number(count, arguments, 3, 48, 16000));
  } catch (const std::exception& e) {
    fmt::print(stderr, "bench_engine: {}\n", e.what());
    return 1;
  }
}
