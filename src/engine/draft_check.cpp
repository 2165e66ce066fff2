#include "engine/draft_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>

#include "engine/engine.h"
#include "engine/text_stream.h"

namespace fathom {
namespace {

constexpr const char* kText =
    "The miller had three sons, and when he died he left them his mill, his donkey and his cat. The eldest took the "
    "mill, the second took the donkey, and nothing but the cat was left for the youngest. \"What am I to do with a "
    "cat?\" he said; \"when I have had a pair of gloves made of his fur, I am done.\" 1,024 + 17 = 1,041; "
    "na\xC3\xAFve caf\xC3\xA9s, \xE4\xBD\xA0\xE5\xA5\xBD. for (int i = 0; i < n; ++i) sum += x[i] * y[i];\n\n";

/// Mostly short, some around the borders of blocks and pages, which their output crosses.
size_t prompt_length(std::mt19937& rng, size_t i) {
  if (i % 10 == 8) return 118 + rng() % 12;
  if (i % 10 == 9) return 246 + rng() % 12;
  const double share = static_cast<double>(rng() % 1000) / 1000;
  return 1 + static_cast<size_t>(share * share * share * 200);
}

std::vector<int32_t> make_prompt(std::mt19937& rng, size_t i, std::span<const int32_t> text, int64_t vocabulary) {
  std::vector<int32_t> ids(prompt_length(rng, i));
  const auto any = [&] { return static_cast<int32_t>(rng() % static_cast<uint32_t>(vocabulary)); };
  if (i % 3 == 0) {
    size_t at = rng() % text.size();
    for (auto& id : ids) id = text[at++ % text.size()];
  } else if (i % 3 == 1) {
    std::generate(ids.begin(), ids.end(), any);
  } else {
    std::vector<int32_t> phrase(2 + rng() % 7);
    std::generate(phrase.begin(), phrase.end(), any);
    for (size_t k = 0; k < ids.size(); ++k) ids[k] = phrase[k % phrase.size()];
  }
  return ids;
}

struct Output {
  std::vector<int32_t> tokens;
  std::optional<TextStream> stream;
  std::string text;  // what was streamed
  FinishReason finish = FinishReason::none;
};
using Outputs = std::map<RequestId, Output>;

Outputs generate(Engine& engine, const LoadedModel& m, int64_t greedy) {
  std::mt19937 rng(20260731);
  const auto text = m.tokenizer.encode(kText, text::AddedTokens::as_text);
  TextOptions shown;
  shown.show_special = true;
  Outputs out;
  const auto sampled = (greedy + 7) / 8;
  for (int64_t i = 0; i < greedy + sampled; ++i) {
    GenerationRequest r;
    r.prompt = make_prompt(rng, static_cast<size_t>(i), text, m.config().vocab_size);
    r.max_tokens = 12 + static_cast<int64_t>(rng() % 20), r.sampling.seed = static_cast<uint64_t>(i);
    r.sampling.temperature = i < greedy ? 0 : 0.8;
    r.stop_ids.assign(m.config().eos_ids.begin(), m.config().eos_ids.end());
    r.prefix.on = false;
    out[engine.add(std::move(r))].stream.emplace(m.tokenizer, shown);
  }
  while (engine.step([&](const GenerationEvent& e) {
    Output& o = out[e.request];
    o.finish = e.finish;
    if (e.token.token >= 0) o.tokens.push_back(e.token.token), o.text += o.stream->push(e.token.token).content;
    if (e.finish != FinishReason::none) o.text += o.stream->finish().content;
  })) {
  }
  return out;
}

/// What was streamed is the text of the tokens, where all of them have one.
bool shows_its_tokens(const Output& o, const text::Tokenizer& tokenizer) {
  const auto known = [&](int32_t id) { return tokenizer.has(id); };
  return !std::all_of(o.tokens.begin(), o.tokens.end(), known) || o.text == tokenizer.decode(o.tokens);
}

}  // namespace

CheckResult drafts_change_nothing(const LoadedModel& m, const DraftCheck& check) {
  if (draft_stages(m.weights) == 0) return {"drafts", Verdict::skipped, "no draft stages are loaded"};
  EngineOptions options;
  options.ops = m.device().shares_host_memory() ? check.ops : "cuda";
  options.cache_tokens = 4096, options.max_sequences = 8, options.max_context = 1024, options.chunk_tokens = 128;
  const Outputs want = [&] {  // one engine at a time: memory may be scarce
    Engine plain(m.config(), m.weights, options);
    return generate(plain, m, check.requests);
  }();
  options.speculate = kMostDrafts, options.draft_acceptance = check.acceptance;
  Engine drafted(m.config(), m.weights, options);
  const Outputs got = generate(drafted, m, check.requests);
  size_t tokens = 0, differing = 0, other_text = 0;
  for (const auto& [id, w] : want) {
    const Output& g = got.at(id);
    tokens += w.tokens.size();
    differing += g.tokens != w.tokens || g.finish != w.finish;
    other_text += g.text != w.text || !shows_its_tokens(g, m.tokenizer);
  }
  const SpeculationStats s = drafted.stats().speculation;
  const std::string fault = draft_fault(s);
  const bool good = differing == 0 && other_text == 0 && s.offered > 0 && s.failed == 0 && fault.empty();
  return {"drafts", good ? Verdict::passed : Verdict::failed,
          fmt::format("{} greedy and {} sampled requests, {} tokens, {} of {} drafts right: {} differ from those "
                      "without, {} in their streamed text; {} failed proposals{}{}",
                      check.requests, static_cast<int64_t>(want.size()) - check.requests, tokens, s.accepted, s.offered,
                      differing, other_text, s.failed, fault.empty() ? "" : "; ", fault)};
}

}  // namespace fathom
