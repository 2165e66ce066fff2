#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "engine/philox.h"

namespace fathom {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

void check_range(const char* name, double value, bool good, const char* wanted) {
  if (!std::isfinite(value) || !good) fail("{} is {}, it must be {}", name, value, wanted);
}

/// Higher logit first; equal logits: lower id first.
bool better(const std::pair<float, int32_t>& a, const std::pair<float, int32_t>& b) {
  return a.first != b.first ? a.first > b.first : a.second < b.second;
}

}  // namespace

void SamplingParams::check(int64_t vocab) const {
  check_range("temperature", temperature, temperature >= 0 && temperature <= 100, "from 0 to 100");
  check_range("top_p", top_p, top_p > 0 && top_p <= 1, "above 0 and at most 1");
  if (top_k < 0) fail("top_k is {}, it must be 0 (off) or more", top_k);
  check_range("min_p", min_p, min_p >= 0 && min_p < 1, "at least 0 and below 1");
  check_range("repetition_penalty", repetition_penalty, repetition_penalty > 0 && repetition_penalty <= 100,
              "above 0 and at most 100");
  check_range("frequency_penalty", frequency_penalty, std::abs(frequency_penalty) <= 100, "from -100 to 100");
  check_range("presence_penalty", presence_penalty, std::abs(presence_penalty) <= 100, "from -100 to 100");
  if (top_logprobs < -1 || top_logprobs > vocab)
    fail("top_logprobs is {}, it must be from 0 to {}", top_logprobs, vocab);
  for (const auto& [token, bias] : logit_bias) {
    if (token < 0 || token >= vocab) fail("logit_bias names token {}, ids go from 0 to {}", token, vocab - 1);
    check_range("logit_bias", bias, std::abs(bias) <= 1000, "from -1000 to 1000");
  }
}

Sampler::Sampler(SamplingParams params, std::span<const int32_t> prompt, int64_t vocab) : params_(std::move(params)) {
  params_.check(vocab);
  if (params_.repetition_penalty == 1 && params_.frequency_penalty == 0 && params_.presence_penalty == 0) return;
  seen_.assign(static_cast<size_t>(vocab), 0);
  counts_.assign(static_cast<size_t>(vocab), 0);
  for (int32_t token : prompt) seen_[static_cast<size_t>(token)] = 1;
}

void Sampler::accept(int32_t token) {
  if (seen_.empty()) return;
  seen_[static_cast<size_t>(token)] = 1;
  ++counts_[static_cast<size_t>(token)];
}

void Sampler::adjust(std::span<const int32_t> banned, const std::vector<uint64_t>* allowed) {
  for (const auto& [token, bias] : params_.logit_bias) logits_[static_cast<size_t>(token)] += static_cast<float>(bias);
  const auto repetition = static_cast<float>(params_.repetition_penalty);
  const auto frequency = static_cast<float>(params_.frequency_penalty),
             presence = static_cast<float>(params_.presence_penalty);
  if (!seen_.empty()) {
    for (size_t i = 0; i < logits_.size(); ++i) {
      if (seen_[i]) logits_[i] = logits_[i] > 0 ? logits_[i] / repetition : logits_[i] * repetition;
      if (counts_[i] > 0) logits_[i] -= frequency * static_cast<float>(counts_[i]) + presence;
    }
  }
  for (int32_t token : banned) logits_[static_cast<size_t>(token)] = kNever;
  if (!allowed) return;
  for (size_t i = 0; i < logits_.size(); ++i)
    if (i / 64 >= allowed->size() || !((*allowed)[i / 64] >> (i % 64) & 1)) logits_[i] = kNever;
}

Sampler Sampler::copy() const {
  Sampler out;
  out.params_ = params_, out.seen_ = seen_, out.counts_ = counts_;  // the rest is scratch memory
  return out;
}

SampledToken Sampler::sample(std::span<const float> logits, int64_t position, std::span<const int32_t> banned,
                             const std::vector<uint64_t>* allowed) {
  return describe(logits, choose(logits, position, banned, allowed));
}

int32_t Sampler::choose(std::span<const float> logits, int64_t position, std::span<const int32_t> banned,
                        const std::vector<uint64_t>* allowed) {
  for (float v : logits)
    if (!std::isfinite(v)) fail("the model gave a logit of {} at position {}: its weights are damaged", v, position);
  logits_.assign(logits.begin(), logits.end());
  adjust(banned, allowed);
  const auto best = std::max_element(logits_.begin(), logits_.end()) - logits_.begin();
  if (logits_[static_cast<size_t>(best)] == kNever) fail("no token is left to choose at position {}", position);
  return params_.temperature == 0 ? static_cast<int32_t>(best) : draw_(logits_, draw_at(position));
}

SampledToken Sampler::describe(std::span<const float> logits, int32_t token) {
  SampledToken out;
  out.token = token;
  if (params_.top_logprobs < 0) return out;

  const float top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float v : logits) sum += std::exp(double{v} - top);
  const double norm = top + std::log(sum);
  out.logprob = static_cast<float>(logits[static_cast<size_t>(out.token)] - norm);
  ranked_.clear();
  for (size_t i = 0; i < logits.size(); ++i) ranked_.emplace_back(logits[i], static_cast<int32_t>(i));
  const auto wanted = ranked_.begin() + std::min<int64_t>(params_.top_logprobs, static_cast<int64_t>(ranked_.size()));
  std::partial_sort(ranked_.begin(), wanted, ranked_.end(), better);
  for (auto it = ranked_.begin(); it != wanted; ++it)
    out.top.push_back({it->second, static_cast<float>(it->first - norm)});
  return out;
}

ops::RowSampling Sampler::draw_at(int64_t position) const {
  ops::RowSampling how;
  if (params_.temperature == 0) return how;
  how.scale = static_cast<float>(std::min(1.4426950408889634 / params_.temperature, 1e30));
  how.top_k = static_cast<int32_t>(std::min<int64_t>(params_.top_k, std::numeric_limits<int32_t>::max()));
  how.top_p = params_.top_p, how.min_p = params_.min_p;
  how.random = uniform_bits(params_.seed, static_cast<uint64_t>(position));
  return how;
}

}  // namespace fathom
