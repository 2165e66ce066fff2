#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

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

/// 2^40 for the best token. A weight below 1 is none: a probability of 2^-40 of the best one's.
constexpr int kWeightBits = 40;
constexpr uint64_t kWeightOfBest = uint64_t{1} << kWeightBits;

/// 2^(40 + x) for x <= 0, cut to a whole number; relative error 2e-7. Products and sums alone, so that every machine
/// gets the same.
uint64_t weight_of(float x) {
  if (!(x > -static_cast<float>(kWeightBits))) return 0;
  int whole = static_cast<int>(x);  // towards zero
  whole -= static_cast<float>(whole) > x;
  const float f = x - static_cast<float>(whole);
  float p = 1.5252734e-5f;  // the series of 2^f
  p = p * f + 1.5403530e-4f;
  p = p * f + 1.3333558e-3f;
  p = p * f + 9.6181291e-3f;
  p = p * f + 5.5504109e-2f;
  p = p * f + 0.24022651f;
  p = p * f + 0.69314718f;
  p = p * f + 1.0f;
  const auto mantissa = static_cast<uint64_t>(p * 0x1p24f);
  const int shift = kWeightBits - 24 + whole;
  return shift >= 0 ? mantissa << shift : mantissa >> -shift;
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
  return params_.temperature == 0 ? static_cast<int32_t>(best) : draw(position);
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

void Sampler::weigh() {
  const float top = *std::max_element(logits_.begin(), logits_.end());
  const auto scale = static_cast<float>(std::min(1.4426950408889634 / params_.temperature, 1e30));
  weights_.resize(logits_.size());
  for (size_t i = 0; i < logits_.size(); ++i) weights_[i] = weight_of((logits_[i] - top) * scale);
}

/// The best candidates that the filters leave, best first, and the sum of their weights.
uint64_t Sampler::filter() {
  ranked_.clear();
  uint64_t total = 0;
  for (size_t i = 0; i < logits_.size(); ++i)
    if (weights_[i] > 0) ranked_.emplace_back(logits_[i], static_cast<int32_t>(i)), total += weights_[i];
  const auto worse = [](const auto& a, const auto& b) { return better(b, a); };
  std::make_heap(ranked_.begin(), ranked_.end(), worse);
  kept_.clear();
  const auto weight_at = [&](size_t i) { return weights_[static_cast<size_t>(kept_[i].second)]; };
  const auto too_small = [&](size_t i) {
    return static_cast<double>(weight_at(i)) < params_.min_p * static_cast<double>(kWeightOfBest);
  };
  // top_p is a share of what top_k leaves.
  const size_t most = params_.top_k > 0 ? static_cast<size_t>(params_.top_k) : logits_.size();
  const bool share_of_all = params_.top_k == 0 && params_.top_p < 1;
  uint64_t sum = 0;
  while (!ranked_.empty() && kept_.size() < most) {
    if (share_of_all && !kept_.empty() && static_cast<double>(sum) >= params_.top_p * static_cast<double>(total)) break;
    std::pop_heap(ranked_.begin(), ranked_.end(), worse);
    kept_.push_back(ranked_.back());
    ranked_.pop_back();
    sum += weight_at(kept_.size() - 1);
    if (too_small(kept_.size() - 1)) break;
  }
  if (params_.top_k > 0 && params_.top_p < 1) {
    const double wanted = params_.top_p * static_cast<double>(sum);
    size_t keep = 0;
    for (sum = 0; keep < kept_.size() && (keep == 0 || static_cast<double>(sum) < wanted); ++keep)
      sum += weight_at(keep);
    kept_.resize(keep);
  }
  while (kept_.size() > 1 && too_small(kept_.size() - 1)) {
    sum -= weight_at(kept_.size() - 1);
    kept_.pop_back();
  }
  return sum;
}

int32_t Sampler::draw(int64_t position) {
  weigh();
  const uint64_t random = uniform_bits(params_.seed, static_cast<uint64_t>(position));
  // Sums of whole numbers: the same in any order and on any machine.
  const auto pick = [&](uint64_t total) {
    return static_cast<uint64_t>(static_cast<unsigned __int128>(random) * total >> 53);
  };
  if (params_.top_k > 0 || params_.top_p < 1 || params_.min_p > 0) {
    uint64_t left = pick(filter());
    for (const auto& [logit, id] : kept_) {
      const uint64_t weight = weights_[static_cast<size_t>(id)];
      if (left < weight) return id;
      left -= weight;
    }
    return kept_.back().second;
  }
  uint64_t total = 0;
  for (const uint64_t w : weights_) total += w;
  uint64_t left = pick(total);
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (left < weights_[i]) return static_cast<int32_t>(i);
    left -= weights_[i];
  }
  throw std::logic_error("Sampler: weights do not add up");
}

}  // namespace fathom
