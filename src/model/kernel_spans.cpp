#include "model/kernel_spans.h"

#include <algorithm>
#include <map>
#include <set>

namespace fathom {
namespace {

/// `kernels`: those of the step on one GPU, in order: all that its ops launched, or all but the last op's, since one
/// rank of several chooses the tokens.
void name_step(const TracedStep& step, std::span<ops::KernelRun* const> kernels) {
  if (step.ops->empty()) return;
  int64_t all = 0;
  for (const OpMark& op : *step.ops) all += op.kernels;
  const auto count = static_cast<int64_t>(kernels.size());
  if (count != all && count != all - step.ops->back().kernels) return;
  size_t at = 0;
  for (const OpMark& op : *step.ops) {
    for (int64_t i = 0; i < op.kernels && at < kernels.size(); ++i, ++at) {
      DeviceSpan& span = kernels[at]->span;
      span.name = op.name;
      if (i == 0) span.bytes = op.bytes, span.flops = op.flops;
    }
  }
}

/// The op of a thread, of those in order of their beginnings, in whose time something began; null: none.
const SpanRecord* op_at(const std::vector<const SpanRecord*>& ops, int64_t when) {
  const auto later =
      std::upper_bound(ops.begin(), ops.end(), when, [](int64_t at, const SpanRecord* o) { return at < o->start_ns; });
  return later != ops.begin() && when < (*std::prev(later))->end_ns ? *std::prev(later) : nullptr;
}

/// Kernels outside of replays. `ops` in order of their beginnings.
void name_launched(std::vector<ops::KernelRun>& runs, const std::vector<SpanRecord>& ops) {
  std::map<int32_t, std::vector<const SpanRecord*>> of_thread;
  for (const SpanRecord& op : ops) of_thread[op.thread].push_back(&op);
  std::map<uint64_t, const DeviceSpan*> calls;
  for (const ops::KernelRun& run : runs)
    if (run.span.category == kRuntimeCategory) calls[run.span.correlation] = &run.span;
  std::map<std::string_view, const char*> of_function;
  std::vector<ops::KernelRun*> unknown;
  std::set<const SpanRecord*> counted;  // their bytes are on a kernel
  for (ops::KernelRun& run : runs) {
    if (run.span.category != kKernelCategory || run.node) continue;
    const auto call = calls.find(run.span.correlation);
    const SpanRecord* op =
        call == calls.end() ? nullptr : op_at(of_thread[call->second->stream], call->second->start_ns);
    if (!op) {
      unknown.push_back(&run);
      continue;
    }
    run.span.name = op->name, run.span.step = op->step;
    if (counted.insert(op).second) run.span.bytes = op->bytes, run.span.flops = op->flops;
    const auto [known, fresh] = of_function.try_emplace(run.span.kernel, op->name);
    if (!fresh && known->second && std::string_view(known->second) != op->name) known->second = nullptr;
  }
  for (ops::KernelRun* run : unknown) {
    const auto known = of_function.find(run->span.kernel);
    if (known != of_function.end() && known->second) run->span.name = known->second;
  }
}

}  // namespace

std::vector<DeviceSpan> name_kernels(std::vector<ops::KernelRun> runs, const std::vector<TracedStep>& steps,
                                     std::vector<SpanRecord> ops) {
  std::stable_sort(ops.begin(), ops.end(), [](const auto& a, const auto& b) { return a.start_ns < b.start_ns; });
  name_launched(runs, ops);
  // By GPU and the call that started them: in order of time.
  std::map<int32_t, std::map<uint64_t, std::vector<ops::KernelRun*>>> replays;
  for (ops::KernelRun& run : runs)
    if (run.span.category == kKernelCategory && run.node)
      replays[run.span.device][run.span.correlation].push_back(&run);
  for (auto& [device, calls] : replays) {
    auto step = steps.begin();
    for (auto& [call, kernels] : calls) {
      if (step == steps.end()) break;
      // Branches of a graph run side by side.
      std::stable_sort(kernels.begin(), kernels.end(), [](const auto* a, const auto* b) { return a->node < b->node; });
      for (ops::KernelRun* k : kernels) k->span.step = step->step;
      name_step(*step++, kernels);
    }
  }
  std::vector<DeviceSpan> spans;
  spans.reserve(runs.size());
  for (ops::KernelRun& run : runs) spans.push_back(std::move(run.span));
  return spans;
}

}  // namespace fathom
