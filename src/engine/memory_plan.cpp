#include "engine/memory_plan.h"

#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "base/progress.h"
#include "engine/draft_source.h"
#include "engine/engine.h"

namespace fathom {
namespace {

/// What a node of an instantiated graph was seen to take, and what the kernels' code and the runtime do.
constexpr int64_t kGraphNodeBytes = 1024, kNodesOfLayer = 26, kCodeBytes = int64_t{96} << 20;

std::string size(int64_t bytes) {
  return human_bytes(static_cast<double>(bytes));
}

}  // namespace

MemoryPlan plan_memory(const WeightSource& source, const EngineOptions& options, const ops::ComputeDevice& device,
                       const LoadOptions& load) {
  const auto counting = std::make_shared<ops::CountingDevice>(device);
  std::shared_ptr<WeightMemory> memory = make_memory(counting);
  memory->reserve(weight_bytes(source, load));
  MemoryPlan plan;
  plan.ranks = load.shard.size;
  const Weights weights = weight_shapes(source, std::move(memory), load);
  plan.weights = counting->allocated();
  {
    const Engine engine(source.config(), weights, options);
    plan.cache = engine.cache().usage().bytes;
    plan.workspaces = counting->allocated() - plan.weights - plan.cache;
    plan.recorded = counting->graphs();
    plan.host = counting->allocated_host();
  }
  plan.graphs = kCodeBytes + plan.recorded * source.config().num_layers * kNodesOfLayer * kGraphNodeBytes;
  const auto use = device.memory_use();
  plan.device_total = use.total, plan.device_free = use.free;
  return plan;
}

std::string text_of(const MemoryPlan& p) {
  return (p.ranks > 1 ? fmt::format("each of {} GPUs, ", p.ranks) : "") +
         fmt::format(
             "memory plan: weights {} + cache {} + workspaces {} + {} recorded steps and kernels about {} = {}; {} of "
             "{} free",
             size(p.weights), size(p.cache), size(p.workspaces), p.recorded, size(p.graphs), size(p.total()),
             size(p.device_free), size(p.device_total));
}

std::string use_beside(const MemoryPlan& p, const ops::ComputeDevice& device) {
  const auto now = device.memory_use();
  const int64_t used = p.device_free - now.free;
  return fmt::format("memory in use: {} ({:+.2f} % of the plan's {}); {} of {} free", size(used),
                     100 * (static_cast<double>(used) / static_cast<double>(p.total()) - 1), size(p.total()),
                     size(now.free), size(now.total));
}

void check_fits(const MemoryPlan& p, const std::string& model, const ops::ComputeDevice& device) {
  if (p.fits()) return;
  fail(
      "{} does not fit on {}: weights {} + cache {} + workspaces {} + recorded steps {} = {}, but {} of {} are free; a "
      "smaller cache (fewer tokens or requests), fewer experts, or a larger GPU would do",
      printable(model, 200), printable(device.name()), size(p.weights), size(p.cache), size(p.workspaces),
      size(p.graphs), size(p.total()), size(p.device_free), size(p.device_total));
}

void check_drafts(const WeightSource& source, int64_t depth, const std::function<void(const std::string&)>& say) {
  if (depth > 0 && source.layout().draft == DraftKind::none)
    fail("--speculate {}: {} has no draft stages; leave it off, or say auto", depth, printable(source.name(), 200));
  const std::string few = few_drafts(source.config(), source.layout(), depth);
  if (!few.empty() && say) say("note: " + few);
}

std::unique_ptr<LoadedModel> load_planned(OpenedModel opened, const EngineOptions& options,
                                          std::shared_ptr<ops::ComputeDevice> device,
                                          const std::function<void(const std::string&)>& say, MemoryPlan& plan) {
  LoadOptions load;
  load.shard.size = opened.ranks;
  check_drafts(*opened.source, options.speculate, say);
  load.drafts = options.speculate != 0, load.fast = options.fast;
  if (!device->shares_host_memory()) {
    plan = plan_memory(*opened.source, options, *device, load);
    if (say) say(text_of(plan));
    check_fits(plan, opened.source->name(), *device);
    for (const auto& other : ops::devices_like(device, opened.ranks)) {
      MemoryPlan there = plan;
      const auto use = other->memory_use();
      there.device_free = use.free, there.device_total = use.total;
      check_fits(there, opened.source->name(), *other);
    }
  }
  if (opened.source->synthetic() && say)
    say("note: synthetic weights and a tokenizer of single bytes: the text means nothing");
  return load_model(std::move(opened), std::move(device), load);
}

}  // namespace fathom
