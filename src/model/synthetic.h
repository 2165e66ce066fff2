// Models without a checkpoint: built-in dimensions, weights from a counter-based generator, in checkpoint precision.
//
// They run every operation on tensors of the real sizes and formats, so that speed and memory can be measured; what
// they say means nothing. Every tensor is drawn with the spread that keeps its product near the size of its input:
// products divide by the root of their width, norms are near 1, so activations stay finite through any number of
// layers.
#pragma once

#include <memory>
#include <string>

#include "model/weights.h"

namespace fathom {

/// `description`: the name of a built-in model, then any of layers=N (the first N), experts=N, inner=N (the width of
/// the experts), seed=N, drafts=dspark or drafts=mtp (draft stages of that kind; else none), separated by commas:
/// "v4-flash,layers=4,experts=16". The same description gives the same bits on any device. Throws Error for what is not
/// one.
std::unique_ptr<WeightSource> synthetic_source(const std::string& description);

}  // namespace fathom
