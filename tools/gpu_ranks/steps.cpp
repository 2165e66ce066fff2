// Steps of the in-box model on two GPUs, of which one fails.
#include <cuda_runtime.h>

#include "base/error.h"
#include "cache/step_plan.h"
#include "engine/loaded_model.h"
#include "model/transformer.h"
#include "support.h"

namespace fathom::gpu_ranks {
namespace {

const LoadedModel& halves() {
  static const auto model = load_model(open_model({"models/fairy", {}, 2}), two_gpus()[0]);
  return *model;
}

/// A quantize that fails on one GPU as long as it is set: on the host, or in the kernel.
struct Broken {
  static inline int gpu = -1;
  static inline bool in_kernel = false;
  static void run(const ops::QuantizeArgs& a, const ops::Launch& l) {
    int here = 0;
    cudaGetDevice(&here);
    ops::QuantizeArgs args = a;
    if (here == gpu && !in_kernel) throw Error("the chip is on fire");
    if (here == gpu) args.x.data = reinterpret_cast<const bf16*>(uintptr_t{1} << 46);
    ops::op_table("cuda", two_gpus()[0]->info()).quantize->run(args, l);
  }
  static ops::OpTable table() {
    static ops::Variant<ops::QuantizeArgs> broken = *ops::op_table("cuda", two_gpus()[0]->info()).quantize;
    broken.run = run;
    ops::OpTable t = ops::op_table("cuda", two_gpus()[0]->info());
    t.quantize = &broken;
    return t;
  }
};

/// The divided model and its cache.
struct Parts {
  explicit Parts(bool graphs)
      : model(halves().config(), halves().weights, Broken::table()),
        cache(halves().config(), CacheBudget{1024, 2, -1, 0}, halves().weights.devices()) {
    model.set_layers(1, cache.layers(1));
    model.use_graphs(graphs);
  }
  std::vector<float> feed(SequenceId id, std::span<const int32_t> tokens) {
    const SegmentRequest request{id, tokens, WantLogits::last};
    if (!cache.reserve(id, static_cast<int64_t>(tokens.size()))) throw std::runtime_error("cache full");
    const auto& out = model.step(plan.build(model.config(), cache, {&request, 1}), cache.layers());
    cache.commit(id, static_cast<int64_t>(tokens.size()));
    cache.check();
    return {&out.logits(0, 0), &out.logits(0, 0) + out.logits.size[1]};
  }

  Transformer model;
  Cache cache;
  StepPlan plan;
};

std::string error_of(Parts& parts, SequenceId id, std::span<const int32_t> tokens) {
  try {
    parts.feed(id, tokens);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(Step, WhoseOperationFailsOnOneGpuIsNamedAndTheNextGivesTheRightBits) {
  std::vector<int32_t> ids(60);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(5 + 37 * i % 400);
  const auto text = std::span(std::as_const(ids));
  for (const bool graphs : {false, true}) {
    for (const int gpu : {1, 0}) {  // where steps are recorded, the rank that does not fail keeps its recording
      SCOPED_TRACE(fmt::format("GPU {}, {}", gpu, graphs ? "recorded" : "op by op"));
      Parts healthy(graphs), s(graphs);
      const SequenceId a = healthy.cache.create(), b = s.cache.create();
      healthy.feed(a, text.first(40)), s.feed(b, text.first(40));
      const auto one = healthy.feed(a, text.subspan(40, 1)), three = healthy.feed(a, text.subspan(41, 3));
      Broken::gpu = gpu;
      EXPECT_EQ(error_of(s, b, text.subspan(40, 1)),
                fmt::format("rank {} of 2: operation quantize: the chip is on fire", gpu));
      Broken::gpu = -1;
      EXPECT_EQ(s.cache.length(b), 40);
      EXPECT_EQ(s.feed(b, text.subspan(40, 1)), one);
      EXPECT_EQ(s.feed(b, text.subspan(41, 3)), three);
    }
  }
}

/// Afterwards this process can use the GPU no more: run alone, and last (--gtest_also_run_disabled_tests).
TEST(Step, DISABLED_WhoseKernelFaultsOnOneGpuEndsWithAnErrorAndTheProcessEnds) {
  const int32_t text[] = {5, 42, 79, 116};
  Parts s(false);
  const SequenceId id = s.cache.create();
  s.feed(id, std::span(text).first(2));
  Broken::gpu = 1, Broken::in_kernel = true;
  for (int again = 0; again < 2; ++again) {
    const auto start = Clock::now();
    const std::string error = error_of(s, id, std::span(text).subspan(2, 1));
    std::printf("after %.0f ms: %s\n", milliseconds_since(start), error.c_str());
    // Whose memory is mapped into a GPU that faulted loses its context with it, so any rank may be the first to tell.
    EXPECT_NE(error.find(" of 2: "), std::string::npos) << error;
    EXPECT_NE(error.find("illegal memory access"), std::string::npos) << error;
  }
  EXPECT_EQ(s.cache.length(id), 2);
}

}  // namespace
}  // namespace fathom::gpu_ranks
