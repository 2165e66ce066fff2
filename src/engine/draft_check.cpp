#include "engine/draft_check.h"

#include <fmt/format.h>

#include <map>
#include <random>

#include "engine/engine.h"

namespace fathom {
namespace {

using Outputs = std::map<RequestId, std::vector<int32_t>>;

Outputs generate(Engine& engine, int64_t vocabulary) {
  constexpr size_t kRequests = 6;
  std::mt19937 rng(20260731);
  for (size_t i = 0; i < kRequests; ++i) {
    GenerationRequest r;
    r.prompt.resize(10 + 55 * i);
    for (auto& id : r.prompt) id = static_cast<int32_t>(rng() % static_cast<uint32_t>(vocabulary));
    r.max_tokens = 80, r.sampling.temperature = i % 3 == 2 ? 0.8 : 0, r.sampling.seed = i;
    r.prefix.on = false;
    engine.add(std::move(r));
  }
  Outputs out;
  while (engine.step([&](const GenerationEvent& e) {
    if (e.token.token >= 0) out[e.request].push_back(e.token.token);
  })) {
  }
  return out;
}

}  // namespace

CheckResult drafts_change_nothing(const LoadedModel& m, const std::string& ops) {
  if (draft_stages(m.weights) == 0) return {"drafts", Verdict::skipped, "no draft stages are loaded"};
  EngineOptions options;
  options.ops = m.device().shares_host_memory() ? ops : "cuda";
  options.cache_tokens = 4096, options.max_sequences = 4, options.max_context = 1024, options.chunk_tokens = 128;
  const Outputs want = [&] {  // one engine at a time: memory may be scarce
    Engine plain(m.config(), m.weights, options);
    return generate(plain, m.config().vocab_size);
  }();
  options.speculate = kMostDrafts;
  Engine drafted(m.config(), m.weights, options);
  const Outputs got = generate(drafted, m.config().vocab_size);
  size_t differing = 0;
  for (const auto& [id, tokens] : want) differing += !got.count(id) || got.at(id) != tokens;
  const SpeculationStats s = drafted.stats().speculation;
  const std::string fault = draft_fault(s);
  const bool good = differing == 0 && s.offered > 0 && s.failed == 0 && fault.empty();
  return {"drafts", good ? Verdict::passed : Verdict::failed,
          fmt::format("{} requests with {} drafts, {} right: {} differ from those without; {} failed proposals{}{}",
                      want.size(), s.offered, s.accepted, differing, s.failed, fault.empty() ? "" : "; ", fault)};
}

}  // namespace fathom
