// How the copy unit finds the weights of the experts.
#pragma once

#include "ops/device/tensor_map.h"
#include "ops/experts/moe_params.h"

namespace fathom::ops::moe {

using device::TensorMap;

/// How the copy unit finds the matrices of the experts; those of the shared expert where there is one.
struct Maps {
  TensorMap w1, w3, w2, s1, s3, s2;
};

/// `describe` makes a map of Planes; `rows` of a box.
template <typename Describe>
Maps describe_weights(const Params& p, const Describe& describe, int rows = device::kBoxRows) {
  const auto planes = [&](const Weight& w, int experts) {
    return describe(device::Planes{w.codes, w.row_bytes, w.expert_codes, w.rows, experts, 0, rows});
  };
  Maps m = {planes(p.w1, p.experts), planes(p.w3, p.experts), planes(p.w2, p.experts), {}, {}, {}};
  if (p.shared_tiles > 0) m.s1 = planes(p.s1, 1), m.s3 = planes(p.s3, 1), m.s2 = planes(p.s2, 1);
  return m;
}

}  // namespace fathom::ops::moe
