// Runs an engine until nothing is left and keeps what each request got.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace fathom::test {

struct Result {
  std::vector<int32_t> tokens;
  FinishReason finish = FinishReason::none;
  std::string error;
  int64_t cached_tokens = 0;
  std::vector<float> prompt_logprobs;
};

/// Adds what an event brought.
inline void take(Result& r, const GenerationEvent& e) {
  EXPECT_EQ(r.finish, FinishReason::none) << "an event after the last";
  if (e.token.token >= 0) r.tokens.push_back(e.token.token);
  r.finish = e.finish, r.error = e.error, r.cached_tokens = e.cached_tokens;
  for (const auto& t : e.prompt_tokens) r.prompt_logprobs.push_back(t.logprob);
}

/// The cache's and the prefix cache's books balance, and every page is used, cached or free.
inline void check_books(const Engine& engine) {
  engine.cache().check();
  engine.prefix_cache().check();
}

/// Steps until the engine is idle; the cache's books must balance after each step, and no event may follow the last one
/// of a request.
inline std::map<RequestId, Result> run_all(Engine& engine) {
  std::map<RequestId, Result> out;
  while (engine.step([&](const GenerationEvent& e) { take(out[e.request], e); })) check_books(engine);
  return out;
}

}  // namespace fathom::test
