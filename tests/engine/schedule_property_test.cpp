// Random schedules on tiny pools: whatever is submitted, cancelled, held and pushed out, every request gets the tokens
// it gets alone from a cold cache, and every page is accounted for. RC_PARAMS=max_success=500 makes it thorough.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "cache/model_support.h"
#include "engine/engine_support.h"

namespace fathom::test {
namespace {

constexpr int kSchedules = kSanitized ? 2 : 8;

int32_t token_at(int32_t stream, size_t i) {
  return static_cast<int32_t>(3 + (static_cast<size_t>(stream) * 577 + i * i * 7 + i * 31) % 1900);
}

/// Prompts of the same stream begin alike, and turn off at `branch`.
struct Spec {
  int32_t stream = 0, branch_stream = 0;
  size_t length = 1, branch = 0;
  int64_t max_tokens = 1;
  bool logprobs = false;  // of the prompt
  auto operator<=>(const Spec&) const = default;

  GenerationRequest request() const {
    GenerationRequest r;
    for (size_t i = 0; i < length; ++i) r.prompt.push_back(token_at(i < branch ? stream : branch_stream, i));
    r.max_tokens = max_tokens;
    r.sampling.seed = length;
    if (logprobs) r.prompt_logprobs = true, r.sampling.top_logprobs = 0;
    return r;
  }
};

const Result& alone(const Spec& spec) {
  static std::map<Spec, Result> known;
  auto& result = known[spec];
  if (!result.tokens.empty()) return result;
  EngineOptions o;
  o.cache_tokens = 1024, o.max_sequences = 1, o.prefix_cache = false;
  Engine engine(Fairy::get().checkpoint.config(), Fairy::get().weights, o);
  const RequestId id = engine.add(spec.request());
  return result = run_all(engine)[id];
}

Spec any_spec() {
  Spec s;
  s.stream = *rc::gen::inRange(0, 2), s.branch_stream = *rc::gen::inRange(2, 4);
  s.length = static_cast<size_t>(*rc::gen::element(1, 60, 127, 128, 129, 255, 256, 257, 300, 383, 400));
  s.branch = std::min(s.length, static_cast<size_t>(*rc::gen::element(0, 128, 250, 256, 400, 400, 400)));
  s.max_tokens = *rc::gen::element<int64_t>(1, 12, 70);
  s.logprobs = *rc::gen::inRange(0, 5) == 0;
  return s;
}

EngineOptions any_options() {
  EngineOptions o;
  o.cache_tokens = *rc::gen::element<int64_t>(480, 520, 700, 1300);
  o.max_sequences = *rc::gen::inRange(1, 5);
  o.chunk_tokens = *rc::gen::element<int64_t>(31, 128, 200);
  o.chunk_beside_decode = *rc::gen::element<int64_t>(0, 20);
  o.snapshots = *rc::gen::inRange(0, 4);
  if (*rc::gen::element(true, false))
    o.window_tokens = std::min<int64_t>(o.cache_tokens, 128 + 144 + 128 + o.chunk_tokens);
  return o;
}

/// Requests of one schedule, and what each got so far.
struct Schedule {
  explicit Schedule(const EngineOptions& options)
      : options(options), engine(Fairy::get().checkpoint.config(), Fairy::get().weights, options) {}

  struct One {
    Spec spec;
    Result got;
    bool cancelled = false, held = false;
  };
  const EngineOptions& options;
  Engine engine;
  std::map<RequestId, One> all;

  One* pick() {
    std::vector<One*> open;
    for (auto& [id, one] : all)
      if (one.got.finish == FinishReason::none) open.push_back(&one);
    return open.empty() ? nullptr : open[static_cast<size_t>(*rc::gen::inRange(0, static_cast<int>(open.size())))];
  }
  RequestId id_of(const One* one) const {
    return std::find_if(all.begin(), all.end(), [&](const auto& entry) { return &entry.second == one; })->first;
  }

  void act() {
    const int what = *rc::gen::inRange(0, 12);
    if (what < 3 && all.size() < 8) {
      const Spec spec = any_spec();
      GenerationRequest request = spec.request();
      request.prefix.on = *rc::gen::inRange(0, 8) > 0;
      request.prefix.salt = *rc::gen::inRange(0, 4) == 0 ? "other" : "";
      all[engine.add(std::move(request))].spec = spec;
    }
    One* one = what < 6 ? pick() : nullptr;
    if (one && what == 3) engine.cancel(id_of(one)), one->cancelled = true;
    if (one && what > 3) engine.hold(id_of(one), what == 4), one->held = what == 4;
  }

  bool step() {
    const auto before = engine.stats();
    const bool more = engine.step([&](const GenerationEvent& e) {
      One& one = all.at(e.request);
      take(one.got, e);
      RC_ASSERT(e.finish != FinishReason::failed);
      RC_ASSERT(e.cached_tokens < static_cast<int64_t>(one.spec.length));
    });
    check_books(engine);
    const auto after = engine.stats();
    RC_ASSERT(after.prompt_tokens - before.prompt_tokens <= options.chunk_tokens);
    const auto& c = after.cache;
    RC_ASSERT(c.entry_free >= 0 && c.entry_cached >= 0 && c.entry_free + c.entry_cached <= c.entry_total);
    if (after.running == 0)
      RC_ASSERT(c.entry_free + c.entry_cached == c.entry_total && c.window_free + c.window_cached == c.window_total);
    for (auto& [id, one] : all)
      if (one.cancelled) RC_ASSERT(one.got.finish != FinishReason::none);  // within this step
    return more;
  }

  void finish() {
    for (auto& [id, one] : all) engine.hold(id, false);
    int steps = 0;
    while (step()) RC_ASSERT(++steps < 5000);
    RC_ASSERT(engine.idle());
    for (auto& [id, one] : all) {
      const Result& cold = alone(one.spec);
      auto want = cold.tokens;
      if (!one.got.tokens.empty()) RC_ASSERT(one.got.prompt_logprobs == cold.prompt_logprobs);
      if (one.got.finish == FinishReason::cancelled) {
        RC_ASSERT(one.cancelled && one.got.tokens.size() < want.size());
        want.resize(one.got.tokens.size());
      }
      RC_ASSERT(one.got.tokens == want);
    }
    engine.clear_prefix_cache();
    check_books(engine);
    const auto c = engine.stats().cache;
    RC_ASSERT(c.entry_free == c.entry_total && c.window_free == c.window_total);
    RC_ASSERT(c.sequences_free == c.sequences_total && c.snapshots_used == 0);
  }
};

TEST(Schedule, OfAnyKindGivesEachRequestTheTokensOfAColdRunAlone) {
  rc::detail::TestParams params = rc::detail::configuration().testParams;  // RC_PARAMS, and a seed
  params.disableShrinking = true;                                          // the seed it prints is enough
  if (!std::getenv("RC_PARAMS")) params.maxSuccess = kSchedules;
  int64_t preemptions = 0, hits = 0;
  const auto property = [&] {
    const EngineOptions options = any_options();
    Schedule schedule(options);
    const int actions = *rc::gen::inRange(20, 150);
    for (int i = 0; i < actions; ++i) {
      schedule.act();
      schedule.step();
    }
    schedule.finish();
    preemptions += schedule.engine.stats().preemptions, hits += schedule.engine.stats().prefix.hits;
  };
  const auto result = rc::detail::checkTestable(property, rc::detail::TestMetadata{}, params);
  std::ostringstream text;
  rc::detail::printResultMessage(result, text);
  std::printf("%lld hits, %lld preemptions\n", static_cast<long long>(hits), static_cast<long long>(preemptions));
  EXPECT_TRUE(result.is<rc::detail::SuccessResult>()) << text.str();
}

}  // namespace
}  // namespace fathom::test
