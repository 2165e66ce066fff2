#include "model/kernel_spans.h"

#include <algorithm>
#include <map>

namespace fathom {
namespace {

int64_t kernels_of(const TracedStep& step) {
  int64_t sum = 0;
  for (const OpMark& op : *step.ops) sum += op.kernels;
  return sum;
}

/// `kernels`: those of the step, in order.
void name_step(const TracedStep& step, std::span<ops::KernelRun* const> kernels) {
  size_t at = 0;
  for (const OpMark& op : *step.ops) {
    for (int64_t i = 0; i < op.kernels; ++i, ++at) {
      DeviceSpan& span = kernels[at]->span;
      span.name = op.name;
      if (i == 0) span.bytes = op.bytes, span.flops = op.flops;
    }
  }
}

}  // namespace

std::vector<DeviceSpan> name_kernels(std::vector<ops::KernelRun> runs, const std::vector<TracedStep>& steps) {
  std::map<uint64_t, std::vector<ops::KernelRun*>> replays;  // by the call that started them: in order of time
  for (ops::KernelRun& run : runs)
    if (run.span.category == kKernelCategory && run.node) replays[run.span.correlation].push_back(&run);
  for (auto& [call, kernels] : replays)  // branches of a graph run side by side
    std::stable_sort(kernels.begin(), kernels.end(), [](const auto* a, const auto* b) { return a->node < b->node; });
  auto replay = replays.begin();
  for (const TracedStep& step : steps) {
    if (replay == replays.end()) break;
    const auto& kernels = replay->second;
    for (ops::KernelRun* k : kernels) k->span.step = step.step;
    if (static_cast<int64_t>(kernels.size()) == kernels_of(step)) name_step(step, kernels);
    ++replay;
  }
  std::vector<DeviceSpan> spans;
  spans.reserve(runs.size());
  for (ops::KernelRun& run : runs) spans.push_back(std::move(run.span));
  return spans;
}

}  // namespace fathom
