// Looks into one step of an engine, layer by layer: are the activations finite, how large, how many experts were met.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/engine.h"

namespace fathom {

struct LayerReading {
  int layer = 0;
  bool finite = true;            // all residual streams and the output of the experts
  double stream_rms = 0;         // root mean square of the residual streams before the experts' output is added
  double output_rms = 0;         // of the experts' output
  int64_t distinct_experts = 0;  // routed experts that the tokens of the step chose
};

/// Runs the next step op by op and reads every layer; empty when there was nothing to do. Events go to `report`.
std::vector<LayerReading> probe_step(Engine& engine, const std::function<void(const GenerationEvent&)>& report);

}  // namespace fathom
