// From logits to the next token of one request.
//
// Order: logit bias, repetition / frequency / presence penalties, temperature, then the filters top-k, top-p, min-p on
// the probabilities, each on what the one before left, then one draw. Temperature 0 takes the largest logit after bias
// and penalties; equal logits: the lower id. The draw depends on (seed, position) alone.
// The filters and the draw are those of ops/choose, which a device may do itself: draw_at().
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "ops/choose/draw.h"

namespace fathom {

struct SamplingParams {
  double temperature = 1;  // 0: greedy
  double top_p = 1;        // (0, 1]: smallest set of most likely tokens with at least this probability
  int64_t top_k = 0;       // 0: off
  double min_p = 0;        // [0, 1): drop tokens below this share of the most likely one's probability
  double repetition_penalty =
      1;  // > 0: divides positive and multiplies negative logits of tokens seen in prompt or output
  double frequency_penalty = 0;                        // subtracted once for each time the token is in the output
  double presence_penalty = 0;                         // subtracted once if the token is in the output
  std::vector<std::pair<int32_t, double>> logit_bias;  // added to the token's logit
  uint64_t seed = 0;
  int top_logprobs = -1;  // -1: none; n >= 0: the token's and the n most likely tokens' log probabilities

  /// Throws Error naming the field when a value is outside its range or not finite, or a biased id outside the
  /// vocabulary.
  void check(int64_t vocab) const;
};

struct TokenLogprob {
  int32_t token = -1;
  float logprob = 0;
};

struct SampledToken {
  int32_t token = -1;
  /// Of the model's own distribution: before bias, penalties, temperature and filters. Only with top_logprobs >= 0.
  float logprob = 0;
  std::vector<TokenLogprob> top;  // most likely first
};

class Sampler {
 public:
  Sampler(SamplingParams params, std::span<const int32_t> prompt, int64_t vocab);

  /// Draws the token at `position` (its place in the whole sequence). Tokens in `banned` get no probability: end tokens
  /// before min_tokens. `allowed`: bit id % 64 of word id / 64 for each token that may come; null: all. Throws Error
  /// when no token is left or a logit is not finite. Does not remember the token: see accept().
  SampledToken sample(std::span<const float> logits, int64_t position, std::span<const int32_t> banned = {},
                      const std::vector<uint64_t>* allowed = nullptr);

  /// The token that sample() would draw, without its log probabilities.
  int32_t choose(std::span<const float> logits, int64_t position, std::span<const int32_t> banned = {},
                 const std::vector<uint64_t>* allowed = nullptr);
  /// One that draws the same tokens and counts on from here by itself.
  Sampler copy() const;

  /// `token` with the log probabilities that params().top_logprobs asks for.
  SampledToken describe(std::span<const float> logits, int32_t token);

  /// Counts the token for the penalties.
  void accept(int32_t token);

  const SamplingParams& params() const { return params_; }
  /// Whether sample() without banned and with all tokens allowed depends on the logits as they are alone, and nothing
  /// else is asked about them: the draw of draw_at().
  bool plain() const { return params_.logit_bias.empty() && seen_.empty() && params_.top_logprobs < 0; }
  /// The draw at a position, for whoever has the logits.
  ops::RowSampling draw_at(int64_t position) const;

 private:
  Sampler() = default;
  void adjust(std::span<const int32_t> banned, const std::vector<uint64_t>* allowed);

  SamplingParams params_;
  std::vector<uint8_t> seen_;    // in prompt or output; empty without penalties
  std::vector<int32_t> counts_;  // in the output; empty without penalties
  std::vector<float> logits_;    // working copy
  ops::TokenDraw draw_;
  std::vector<std::pair<float, int32_t>> ranked_;
};

}  // namespace fathom
