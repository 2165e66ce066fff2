// RoPE base frequencies, in the fp32 steps of the official code: rounding once from double would move 20 of the 32 by
// an ulp, which shows in the results beyond 128K positions. Spec 2.0.
#pragma once

#include <vector>

#include "formats/config.h"

namespace fathom {

/// f_i = base^(-2i/dim), i < dim/2; with `yarn` blended towards f_i / factor for slow channels. No mscale.
std::vector<float> rope_frequencies(double base, int dim, const YarnConfig* yarn);

}  // namespace fathom
