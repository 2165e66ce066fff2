#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace fathom {

std::vector<float> rope_frequencies(double base, int dim, const YarnConfig* yarn) {
  std::vector<float> freq(static_cast<size_t>(dim / 2));
  for (size_t i = 0; i < freq.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(dim);
    freq[i] = 1.0f / static_cast<float>(std::pow(base, static_cast<double>(exponent)));
  }
  if (!yarn) return freq;
  const auto channel_of = [&](double rotations) {
    return dim * std::log(static_cast<double>(yarn->original_length) / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(base));
  };
  // Inside the table and apart, as the official code has it; no effect on the released models.
  const float low = static_cast<float>(std::max(0.0, std::floor(channel_of(yarn->beta_fast))));
  float high = static_cast<float>(std::min(dim - 1.0, std::ceil(channel_of(yarn->beta_slow))));
  if (high == low) high += 0.001f;
  for (size_t i = 0; i < freq.size(); ++i) {
    const float ramp = std::clamp((static_cast<float>(i) - low) / (high - low), 0.0f, 1.0f);
    const float keep = 1.0f - ramp;
    freq[i] = freq[i] / static_cast<float>(yarn->factor) * (1.0f - keep) + freq[i] * keep;
  }
  return freq;
}

}  // namespace fathom
