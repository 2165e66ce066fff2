// A model in this process as the target: the engine alone, without HTTP.
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/interrupt.h"
#include "bench/cpu_time.h"
#include "bench/target.h"
#include "cache/fill.h"
#include "engine/engine.h"
#include "engine/layer_probe.h"
#include "engine/memory_plan.h"
#include "ops/fill/fill.h"
#include "ops/index_rows.h"
#include "plan/bound.h"
#include "profile/chrome_trace.h"
#include "profile/summary.h"

namespace fathom::bench {
namespace {

using Clock = std::chrono::steady_clock;

/// Bytes read and written a second by large copies on the device: the best of three.
double copy_bandwidth(ops::ComputeDevice& device) {
  constexpr size_t kBytes = size_t{1} << 30;
  constexpr int kCopies = 8;
  const ops::DeviceBuffer from(device, kBytes), to(device, kBytes);
  ops::FillArgs fill;
  fill.to = from.data(), fill.bytes = kBytes;
  ops::fill(fill, device);
  double best = 0;
  for (int repeat = 0; repeat < 3; ++repeat) {
    device.copy(to.data(), from.data(), kBytes);
    device.synchronize("copying");
    const auto start = Clock::now();
    for (int i = 0; i < kCopies; ++i) device.copy(to.data(), from.data(), kBytes);
    device.synchronize("copying");
    best = std::max(best, 2.0 * kCopies * kBytes / std::chrono::duration<double>(Clock::now() - start).count());
  }
  return best;
}

/// No drafts while it lives: those steps are looked at, and say nothing of what drafts cost.
class DraftPause {
 public:
  explicit DraftPause(Engine& engine) : engine_(engine) { engine.pause_drafts(true); }
  ~DraftPause() { engine_.pause_drafts(false); }
  DraftPause(const DraftPause&) = delete;
  DraftPause& operator=(const DraftPause&) = delete;

 private:
  Engine& engine_;
};

class InProcess final : public InProcessTarget {
 public:
  explicit InProcess(const InProcessOptions& o) : options_(o) {
    OpenedModel opened = open_model(o.model);
    plan_model_ = plan::model_of(opened.source->name(), opened.source->config(), opened.source->layout());
    const int64_t positions = opened.source->config().max_positions;
    if (o.most_tokens > positions)
      fail("requests of up to {} tokens: the model has positions for {}", o.most_tokens, positions);
    EngineOptions e;
    e.ops = fast_ops(*o.device);
    e.fast = o.fast;
    e.max_sequences = static_cast<int32_t>(o.most_open);
    e.max_context = std::min(positions, o.most_tokens);
    e.cache_tokens = e.max_context * o.most_open;
    e.chunk_tokens = o.chunk;
    std::set<int32_t> depths(o.later.begin(), o.later.end());
    depths.insert(o.speculate);
    e.speculate = depths.size() > 1 ? -1 : o.speculate;  // the memory plan is of the largest
    for (const int32_t depth : depths)
      if (depth > 0 && depth != e.speculate) check_drafts(*opened.source, depth, o.say);
    if (o.context > 0) {
      e.prefix_cache = false;
      // The window of each request and the rows of a chunk; no prompt is ever whole.
      const int64_t window = opened.source->config().window + 4 * Cache::kWindowPage + Cache::kRing4;
      e.window_tokens = std::min(e.cache_tokens, window * o.most_open + 2 * o.chunk + PrefixCache::kKeepWindow);
    }
    if (!o.device->shares_host_memory()) bandwidth_ = copy_bandwidth(*o.device);
    MemoryPlan plan;
    model_ = load_planned(std::move(opened), e, o.device, o.say, plan);
    engine_options_ = e;
    set_drafts(o.speculate, o.draft_acceptance);
    if (o.say && !o.device->shares_host_memory()) o.say(use_beside(plan, *o.device));
    if (o.say)
      o.say(fmt::format("weights in place after {:.1f} s, {:.1f} GB/s", model_->load_seconds,
                        static_cast<double>(model_->source->total_bytes()) / model_->load_seconds / 1e9));
  }

  void set_drafts(int32_t speculate, double draft_acceptance) override {
    options_.draft_acceptance = draft_acceptance;
    engine_options_.speculate = speculate;
    engine_options_.draft_acceptance = draft_acceptance;
    engine_.reset();  // its memory first
    engine_ = std::make_unique<Engine>(model_->config(), model_->weights, engine_options_);
    if (options_.context > 0) fill_cache(engine_->cache(), *options_.device, 1);
  }

  std::string describe() const override {
    std::string text = printable(options_.model.shown(), 400) + ", in this process on " +
                       printable(options_.device->name(), 100) + (options_.fast ? ", fast kernels" : ", exact kernels");
    if (options_.model.ranks > 1)
      text += fmt::format("; in {} parts, sums over {}", options_.model.ranks, engine_->model().communicator());
    if (engine_options_.speculate != 0)
      text += engine_options_.speculate < 0 ? "; as many drafts as pay"
                                            : fmt::format("; {} drafts in a step", engine_options_.speculate);
    if (options_.draft_acceptance >= 0 && engine_options_.speculate != 0)
      text += fmt::format("; drafts taken for right with probability {:g}", options_.draft_acceptance);
    if (options_.context > 0)
      text += fmt::format("; context of {} tokens that nobody computed: the cache holds numbers of their size",
                          options_.context);
    return text;
  }

  std::optional<StepFloor> floor(double open) override {
    // A profile is of the same steps that tell what the floor needs.
    if (options_.context == 0 || (bandwidth_ <= 0 && options_.profile.empty())) return std::nullopt;
    const auto requests = static_cast<int64_t>(open);
    if (!experts_met_.count(requests)) experts_met_[requests] = experts_met(requests);  // drafts change nothing of it
    const double met = experts_met_[requests];
    if (bandwidth_ <= 0) return std::nullopt;
    plan::Devices devices;
    devices.gpu.bandwidth = bandwidth_, devices.gpu.bf16 = devices.gpu.fp8 = 1e15;
    devices.index_row = ops::kIndexCodeBytes + ops::kIndexScaleBytes;
    const double ranks = options_.model.ranks;
    const auto context = static_cast<double>(options_.context);
    const plan::StepBound b = plan::bound(plan_model_, devices, open, context);
    // Over several GPUs: each weight on one of them, evenly, and the cache on all.
    const double weights = (b.fixed_bytes + b.expert_bytes * met / b.distinct) / ranks;
    return StepFloor{weights + b.cache_bytes, bandwidth_, met, b.distinct, context};
  }

  LevelRun run(const LevelPlan& plan, Workload& workload, const LevelProgress& progress) override {
    LevelRun out;
    out.concurrency = static_cast<double>(plan.concurrency), out.rate = plan.rate;
    out.requests.reserve(static_cast<size_t>(plan.requests));
    const double cpu = cpu_time();
    const Engine::Stats before = engine_->stats();
    const auto start = Clock::now();
    const auto now = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
    std::mt19937_64 random(plan.first_index + 1);
    std::exponential_distribution<double> pause(plan.rate > 0 ? plan.rate : 1);
    double due = plan.rate > 0 ? pause(random) : 0;
    std::map<RequestId, size_t> open;
    int64_t sent = 0, ended = 0;
    while (ended < plan.requests && !interrupted()) {
      while (sent < plan.requests &&
             (plan.rate > 0 ? due <= now() : static_cast<int64_t>(open.size()) < plan.concurrency)) {
        send(workload, plan.first_index + static_cast<uint64_t>(sent), plan.rate > 0 ? due : now(), now(), open, out);
        ++sent;
        due += plan.rate > 0 ? pause(random) : 0;
      }
      const bool worked = engine_->step([&](const GenerationEvent& event) {
        const auto at = open.find(event.request);
        if (at == open.end()) return;
        RequestRecord& r = out.requests[at->second];
        if (event.token.token >= 0) r.pieces.push_back(now());
        if (event.finish == FinishReason::none) return;
        r.end = now(), r.finish = name_of(event.finish), r.error = event.error;
        r.output_tokens = static_cast<int64_t>(r.pieces.size());
        open.erase(at);
        progress(++ended);
      });
      if (!worked && plan.rate > 0 && due > now())
        std::this_thread::sleep_for(std::chrono::duration<double>(std::min(due - now(), 0.05)));
    }
    const double took = now();
    out.interrupted = ended < plan.requests;
    for (const auto& [id, index] : open)
      engine_->cancel(id), out.requests[index].error = "interrupted", out.requests[index].end = now();
    while (!engine_->idle()) engine_->step([](const GenerationEvent&) {});
    out.cpu_seconds = cpu_time() - cpu;
    const Engine::Stats after = engine_->stats();
    DraftCounts& d = out.drafts;
    d.steps = after.steps - before.steps, d.seconds = took;
    d.generated = after.generated_tokens - before.generated_tokens;
    const SpeculationStats &drafts = after.speculation, &earlier = before.speculation;
    d.forced = options_.draft_acceptance >= 0;
    d.proposals = drafts.proposals - earlier.proposals;
    d.faults = drafts.failed + drafts.refused - earlier.failed - earlier.refused;
    d.offered = drafts.offered - earlier.offered, d.accepted = drafts.accepted - earlier.accepted;
    d.offered_at = drafts.offered_at, d.accepted_at = drafts.accepted_at;
    for (size_t i = 0; i < earlier.offered_at.size(); ++i)
      d.offered_at[i] -= earlier.offered_at[i], d.accepted_at[i] -= earlier.accepted_at[i];
    return out;
  }

 private:
  void send(Workload& workload, uint64_t index, double due, double sent, std::map<RequestId, size_t>& open,
            LevelRun& out) {
    GenerationRequest request;
    const Prompt prompt = workload.prompt(index);
    RequestRecord r;
    r.due = due, r.sent = sent;
    if (options_.context > 0) {
      request = assumed_request(index);
    } else {
      request.prompt = {model_->config().bos_id};
      model_->tokenizer.encode(prompt.text, text::AddedTokens::as_text, request.prompt);
      workload.calibrate(prompt.text.size(), static_cast<int64_t>(request.prompt.size()) - 1);
    }
    request.max_tokens = prompt.max_tokens;
    request.sampling.temperature = static_cast<float>(options_.temperature);
    r.prompt_tokens = static_cast<int64_t>(request.prompt.size());
    const RequestId id = engine_->add(std::move(request));
    open.emplace(id, out.requests.size());
    out.requests.push_back(std::move(r));
  }

  /// A prompt of the context's length of which the last token alone is computed, another one for each index.
  GenerationRequest assumed_request(uint64_t index) const {
    GenerationRequest request;
    request.prompt.assign(static_cast<size_t>(options_.context), model_->config().bos_id);
    std::mt19937_64 random(index + 1);
    request.prompt.back() = static_cast<int32_t>(random() % static_cast<uint64_t>(model_->config().vocab_size));
    request.sampling.temperature = options_.temperature;
    request.assumed = options_.context - 1;
    request.prefix.on = false;
    return request;
  }

  /// Different experts of a layer that a step of `open` requests meets, on average over the layers; read off one step.
  /// Throws Error when an activation is not finite.
  double experts_met(int64_t open) {
    const DraftPause pause(*engine_);
    std::vector<RequestId> ids;
    for (int64_t i = 0; i < open; ++i) {
      GenerationRequest request = assumed_request(static_cast<uint64_t>(i));
      request.max_tokens = 0;  // as long as they are wanted here
      ids.push_back(engine_->add(std::move(request)));
    }
    const auto ignore = [](const GenerationEvent&) {};
    for (int i = 0; i < 3; ++i) engine_->step(ignore);
    const std::vector<LayerReading> layers = probe_step(*engine_, ignore);
    if (!options_.profile.empty()) write_profile(open);
    // Weights for fast kernels are in another order.
    if (options_.say && !options_.fast && !options_.device->shares_host_memory() && options_.model.ranks == 1)
      options_.say(cost_of_exactness(open));
    for (const RequestId id : ids) engine_->cancel(id);
    while (!engine_->idle()) engine_->step(ignore);
    double sum = 0, largest = 0;
    for (const LayerReading& l : layers) {
      if (!l.finite) fail("layer {} has an activation that is not finite", l.layer);
      sum += static_cast<double>(l.distinct_experts), largest = std::max(largest, l.stream_rms);
    }
    if (options_.say)
      options_.say(
          fmt::format("{} layers read at {} requests: all finite, residual streams up to {:.1f} rms, {:.1f} "
                      "different experts a layer",
                      layers.size(), open, largest, sum / static_cast<double>(layers.size())));
    return sum / static_cast<double>(layers.size());
  }

  /// Seconds of a step, on average over kProfileSteps.
  double seconds_a_step() {
    const auto start = Clock::now();
    for (int i = 0; i < kProfileSteps; ++i) engine_->step([](const GenerationEvent&) {});
    return std::chrono::duration<double>(Clock::now() - start).count() / kProfileSteps;
  }

  /// Steps of the open requests with exact and with fast kernels, both with the order of weights of the exact ones.
  std::string cost_of_exactness(int64_t open) {
    const auto seconds = [&](bool fast) {
      engine_->model().set_ops(ops::op_table("cuda", options_.device->info(), fast));
      for (int i = 0; i < 3; ++i) engine_->step([](const GenerationEvent&) {});  // records the step
      return seconds_a_step();
    };
    const double fast = seconds(true), exact = seconds(false);
    return fmt::format(
        "{} requests: {:.3f} ms a step with exact kernels, {:.3f} with fast ones: exactness costs {:.1f} % (--fast "
        "also "
        "has weights in an order of its own)",
        open, exact * 1e3, fast * 1e3, 100 * (exact / fast - 1));
  }

  /// Steps of the open requests with and without a recorder; the trace of the former.
  void write_profile(int64_t open) {
    const double without = seconds_a_step();
    Recorder recorder;
    const auto seconds = [&](const auto& work) {
      const auto start = Clock::now();
      work();
      return std::chrono::duration<double>(Clock::now() - start).count();
    };
    const double starting = seconds([&] { engine_->set_recorder(&recorder); });
    int steps = 0;
    const double running = seconds([&] {
      for (; steps < kMostProfileSteps && recorder.steps() < kProfileSteps; ++steps)
        engine_->step([](const GenerationEvent&) {});
    });
    const double ending = seconds([&] { engine_->set_recorder(nullptr); });
    const double with = starting + running + ending;
    std::filesystem::path file = options_.profile;
    std::string suffix = file.extension().string();
    if (suffix == ".gz") file.replace_extension(), suffix = file.extension().string() + suffix;
    file.replace_extension();
    file += fmt::format("-b{}{}", open, suffix);
    profile::write_chrome_trace(recorder, file,
                                {{"model", model_->name()},
                                 {"requests", std::to_string(open)},
                                 {"context", std::to_string(options_.context)},
                                 {"kernels", options_.fast ? "fast" : "exact"}});
    if (!options_.say) return;
    options_.say(
        fmt::format("profile in {}: {} of {} steps recorded; {:.3f} ms a step in all, {:.3f} without ({:+.1f} %), "
                    "beginning ({:.0f} "
                    "ms) and ending it ({:.0f}) included",
                    printable(file.string(), 400), recorder.steps(), steps, with / steps * 1e3, without * 1e3,
                    100 * (with / steps / without - 1), starting * 1e3, ending * 1e3));
    if (!recorder.cost().problem.empty())
      options_.say("recording failed: " + printable(recorder.cost().problem, 400) + ": the trace has the steps before");
    else if (!engine_->model().trace_problem().empty())
      options_.say("no kernel trace (" + printable(engine_->model().trace_problem(), 400) +
                   "): every operation was launched and waited for by itself");
    options_.say(profile::format_table(profile::summarize(recorder), 110));
  }

  InProcessOptions options_;
  EngineOptions engine_options_;
  plan::Model plan_model_;
  double bandwidth_ = 0;
  std::map<int64_t, double> experts_met_;
  std::unique_ptr<LoadedModel> model_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace

std::unique_ptr<InProcessTarget> in_process_target(const InProcessOptions& options) {
  return std::make_unique<InProcess>(options);
}

}  // namespace fathom::bench
