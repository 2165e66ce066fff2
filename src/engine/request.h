// What an engine is asked for and what it reports.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/sampler.h"

namespace fathom::text {
class Constraint;
}

namespace fathom {

inline constexpr int32_t kMostDrafts = 8;  // of one request in a step: the cache takes back so many tokens at no cost

/// What drafts did for a request, or for several.
struct DraftUse {
  int64_t steps = 0;                                             // that brought it tokens
  int64_t offered = 0, accepted = 0;                             // drafts verified, and those that were right
  std::array<int64_t, kMostDrafts> offered_at{}, accepted_at{};  // the same by place in the proposal

  /// Adds what has come since `before`, an earlier state of `now`.
  void add(const DraftUse& now, const DraftUse& before);
};

enum class FinishReason { none, stop, length, cancelled, failed };

/// "stop", "length", ... as the OpenAI API spells them; "cancelled" and "error" are not of that API.
const char* name_of(FinishReason reason);

/// Bounds the thinking: after `tokens` tokens of output without `end_id` the next token is `end_id`, whatever the model
/// says. Off while `end_id` is negative.
struct ThinkingLimit {
  int64_t tokens = 0;
  int32_t end_id = -1;
};

/// What a request has to do with the prefix cache.
struct PrefixUse {
  bool on = true;    // off: takes nothing from it and leaves nothing in it
  std::string salt;  // only requests of the same salt share
};

struct GenerationRequest {
  std::vector<int32_t> prompt;  // at least one token
  SamplingParams sampling;
  int64_t max_tokens = 0;         // 0: as many as the context allows
  int64_t min_tokens = 0;         // stop ids are not sampled before
  std::vector<int32_t> stop_ids;  // end the request; the id is reported, with FinishReason::stop
  ThinkingLimit thinking;
  bool prompt_logprobs = false;  // report the prompt's tokens too; needs sampling.top_logprobs >= 0
  PrefixUse prefix;
  std::string client;  // whose it is: turns go round the clients (fair_queue.h)
  /// For benchmarks: so many tokens of the prompt are not computed; the cache counts as holding them, with whatever it
  /// holds. Needs prefix.on = false. The last token of the prompt is always computed.
  int64_t assumed = 0;
  /// What the output must look like; null: anything. Shared by the requests of one grammar, used by the engine's
  /// thread.
  std::shared_ptr<text::Constraint> constraint;
};

using RequestId = int64_t;

/// What step() reports for each request that got a token or ended.
struct GenerationEvent {
  RequestId request = 0;
  SampledToken token;  // token.token is -1 when the request ended without one (cancelled, failed)
  FinishReason finish = FinishReason::none;
  std::string error;  // failed: why, in one line
  /// With the first token, when the request asked for prompt_logprobs: the prompt's tokens from the second on, each
  /// with its log probability behind those before it.
  std::vector<SampledToken> prompt_tokens;
  int64_t cached_tokens = 0;                        // of the prompt: found in the prefix cache, not computed
  std::chrono::steady_clock::time_point started{};  // when its turn came; none: it never did
  DraftUse drafts;                                  // of the request so far
};

struct EngineOptions {
  std::string ops = "cpu";          // "cpu" or "ref"; "cuda" on a GPU
  bool fast = false;                // kernels whose last bits depend on the batch, where they are faster
  int64_t cache_tokens = 16384;     // tokens of all running requests together
  int32_t max_sequences = 8;        // running requests
  int64_t max_context = 0;          // tokens of one request; 0: what the model allows
  int64_t chunk_tokens = 512;       // prompt tokens in one step
  int64_t chunk_beside_decode = 0;  // the same in a step that also decodes, which it holds up; 0: chunk_tokens
  bool prefix_cache = true;         // what requests leave behind serves later ones that begin with the same tokens
  int32_t snapshots = -1;           // ends of requests that can be gone on from without feeding a token again, the
                                    // latest ones; -1: max_sequences
  int32_t speculate = 0;            // drafts of a request in one step, at most; 0: none, -1: as many as pay. What a
                                    // request gets is the same with any number
  double draft_acceptance = -1;  // for measurements alone: drafts are taken for right with this probability, whatever
                                 // the model says, so the text means nothing; negative: drafts are verified
  int64_t window_tokens = 0;     // tokens whose window rows have room; 0: cache_tokens. Rows of a window are most of
                                 // the bytes of a token, and only the last 128 of a sequence are read
};

}  // namespace fathom
