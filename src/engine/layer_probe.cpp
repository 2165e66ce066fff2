#include "engine/layer_probe.h"

#include <cmath>
#include <set>

namespace fathom {
namespace {

template <typename T>
std::vector<T> fetched(ops::ComputeDevice& device, const T* data, int64_t count) {
  std::vector<T> out(static_cast<size_t>(count));
  device.download(out.data(), data, out.size() * sizeof(T));
  return out;
}

double root_mean_square(const std::vector<bf16>& values) {
  double sum = 0;
  for (const bf16 v : values) sum += double{to_float(v)} * to_float(v);
  return std::sqrt(sum / static_cast<double>(std::max<size_t>(1, values.size())));
}

}  // namespace

std::vector<LayerReading> probe_step(Engine& engine, const std::function<void(const GenerationEvent&)>& report) {
  Transformer& model = engine.model();
  std::vector<LayerReading> readings;
  model.set_probe([&](int layer) {
    const Activations& a = model.activations();
    LayerReading r;
    r.layer = layer;
    r.stream_rms = root_mean_square(fetched(model.device(), a.streams.data, a.streams.count()));
    r.output_rms = root_mean_square(fetched(model.device(), a.y.data, a.y.count()));
    r.finite = std::isfinite(r.stream_rms) && std::isfinite(r.output_rms);
    const auto experts = fetched(model.device(), a.expert.data, a.expert.count());
    r.distinct_experts = static_cast<int64_t>(std::set<int32_t>(experts.begin(), experts.end()).size());
    readings.push_back(r);
  });
  try {
    engine.step(report);
  } catch (...) {
    model.set_probe({});
    throw;
  }
  model.set_probe({});
  return readings;
}

}  // namespace fathom
