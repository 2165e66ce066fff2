#include "engine/engine.h"

#include <algorithm>

#include "base/error.h"

namespace fathom {

const char* name_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::none:
      return "none";
    case FinishReason::stop:
      return "stop";
    case FinishReason::length:
      return "length";
    case FinishReason::cancelled:
      return "cancelled";
    case FinishReason::failed:
      return "error";
  }
  return "";
}

namespace {

EngineOptions checked(const EngineOptions& o) {
  if (o.cache_tokens < 1 || o.max_sequences < 1 || o.chunk_tokens < 1)
    fail("engine: cache of {} tokens, {} sequences, chunks of {} tokens: each must be at least 1", o.cache_tokens,
         o.max_sequences, o.chunk_tokens);
  if (o.chunk_beside_decode < 0 || o.chunk_beside_decode > o.chunk_tokens)
    fail("engine: chunks of {} tokens beside decode: it must be from 0 to {}, the size of all chunks",
         o.chunk_beside_decode, o.chunk_tokens);
  return o;
}

/// Rows of logits in one step for a request that wants those of its prompt: a row is as wide as the vocabulary.
constexpr int64_t kPromptLogitRows = 64;

}  // namespace

Engine::Engine(const ModelConfig& config, const Weights& weights, const EngineOptions& options, Recorder* recorder)
    : config_(config),
      options_(checked(options)),
      max_context_(options.max_context > 0 ? std::min(options.max_context, config.max_positions)
                                           : config.max_positions),
      recorder_(recorder),
      model_(config, weights, ops::op_table(options.ops)),
      cache_(config, CacheBudget{options.cache_tokens, options.max_sequences, 0, 0}) {
  model_.set_recorder(recorder);
  max_context_ = std::min(max_context_, options.cache_tokens);
}

RequestId Engine::add(GenerationRequest request) {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  if (prompt == 0) fail("the prompt is empty: at least one token is needed");
  if (prompt >= max_context_)
    fail("the prompt has {} tokens, the context holds {}: shorten it or raise the context", prompt, max_context_);
  for (const auto* ids : {&request.prompt, &request.stop_ids})
    for (int32_t id : *ids)
      if (id < 0 || id >= config_.vocab_size)
        fail("token id {} is outside the vocabulary of {}", id, config_.vocab_size);
  if (request.max_tokens < 0 || request.min_tokens < 0) fail("max_tokens and min_tokens must not be negative");
  if (request.thinking.end_id >= config_.vocab_size || request.thinking.tokens < 0)
    fail("the thinking limit is {} tokens and end id {}: both must be possible", request.thinking.tokens,
         request.thinking.end_id);
  if (request.prompt_logprobs && request.sampling.top_logprobs < 0)
    fail("log probabilities of the prompt need top_logprobs of 0 or more");
  const int64_t room = max_context_ - prompt;
  request.max_tokens = request.max_tokens == 0 ? room : std::min(request.max_tokens, room);

  Active a;
  a.id = next_id_;
  a.sampler = std::make_unique<Sampler>(request.sampling, request.prompt, config_.vocab_size);
  a.reserved = prompt + request.max_tokens;
  a.thinking = request.thinking.end_id >= 0;
  a.request = std::move(request);
  waiting_.push_back(std::move(a));
  return next_id_++;
}

void Engine::cancel(RequestId id) {
  for (auto& a : waiting_)
    if (a.id == id) a.cancelled = true;
  for (auto& a : running_)
    if (a->id == id) a->cancelled = true;
}

void Engine::hold(RequestId id, bool held) {
  for (auto& a : waiting_)
    if (a.id == id) a.held = held;
  for (auto& a : running_)
    if (a->id == id) a->held = held;
}

void Engine::set_recorder(Recorder* recorder) {
  recorder_ = recorder;
  model_.set_recorder(recorder);
}

void Engine::admit() {
  while (!waiting_.empty() && cache_.can_create() && promised_ + waiting_.front().reserved <= options_.cache_tokens) {
    auto a = std::make_unique<Active>(std::move(waiting_.front()));
    waiting_.pop_front();
    a->sequence = cache_.create();
    promised_ += a->reserved;
    running_.push_back(std::move(a));
  }
}

void Engine::report_cancelled(const std::function<void(const GenerationEvent&)>& report) {
  std::vector<RequestId> ended;
  for (const auto& a : running_)
    if (a->cancelled) ended.push_back(a->id);
  remove_finished(ended);
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if (it->cancelled) ended.push_back(it->id);
    it = it->cancelled ? waiting_.erase(it) : it + 1;
  }
  for (RequestId id : ended) report({id, {}, FinishReason::cancelled, {}, {}});
}

/// Prompt tokens that the next step may take.
int64_t Engine::prompt_budget() const {
  const bool decodes =
      std::any_of(running_.begin(), running_.end(), [](const auto& a) { return a->next >= 0 && !a->held; });
  return decodes && options_.chunk_beside_decode > 0 ? options_.chunk_beside_decode : options_.chunk_tokens;
}

void Engine::choose_work(std::vector<SegmentRequest>& segments, std::vector<Active*>& owners) {
  int64_t budget = prompt_budget();
  for (auto& a : running_) {
    if (a->held) continue;
    const auto prompt = static_cast<int64_t>(a->request.prompt.size());
    if (a->next >= 0) {
      segments.push_back({a->sequence, std::span(&a->next, 1), WantLogits::last});
    } else if (budget > 0) {
      const bool all = a->request.prompt_logprobs;
      const int64_t n = std::min({budget, prompt - a->fed, all ? kPromptLogitRows : budget});
      const auto part =
          std::span<const int32_t>(a->request.prompt).subspan(static_cast<size_t>(a->fed), static_cast<size_t>(n));
      const auto logits = all ? WantLogits::all : a->fed + n == prompt ? WantLogits::last : WantLogits::none;
      segments.push_back({a->sequence, part, logits});
      budget -= n;
    } else {
      continue;
    }
    const auto tokens = static_cast<int64_t>(segments.back().tokens.size());
    if (!cache_.reserve(a->sequence, tokens)) throw std::logic_error("an admitted request found no room in the cache");
    owners.push_back(a.get());
  }
}

bool Engine::step(const std::function<void(const GenerationEvent&)>& report) {
  report_cancelled(report);
  admit();
  std::vector<SegmentRequest> segments;
  std::vector<Active*> owners;
  choose_work(segments, owners);
  if (segments.empty()) return false;

  const StepBatch* batch;
  {
    Span span(recorder_, "plan_step", 0, 0, {}, kPhaseCategory);
    batch = &plan_.build(config_, cache_, segments);
  }
  const Activations& out = model_.step(*batch, cache_.layers());
  ++stats_.steps;
  for (size_t i = 0; i < owners.size(); ++i) {
    const auto tokens = static_cast<int64_t>(segments[i].tokens.size());
    cache_.commit(owners[i]->sequence, tokens);
    if (owners[i]->next < 0) owners[i]->fed += tokens, stats_.prompt_tokens += tokens;
  }
  int64_t row = 0;
  std::vector<GenerationEvent> events;
  std::vector<RequestId> finished;
  for (size_t i = 0; i < owners.size(); ++i) {
    if (segments[i].logits == WantLogits::none) continue;
    if (segments[i].logits == WantLogits::all) {
      const auto rows = static_cast<int64_t>(segments[i].tokens.size());
      keep_prompt_logprobs(*owners[i], out.logits.rows(row, rows));
      row += rows;
      if (owners[i]->fed < static_cast<int64_t>(owners[i]->request.prompt.size())) continue;
      --row;  // the last one chooses the first token
    }
    const auto logits = out.logits[row++];
    events.push_back(
        take_token_or_fail(*owners[i], std::span<const float>(logits.data, static_cast<size_t>(logits.size[0]))));
    if (events.back().finish != FinishReason::none) finished.push_back(owners[i]->id);
  }
  remove_finished(finished);
  for (const GenerationEvent& event : events) report(event);
  return true;
}

/// `logits`: those behind the prompt tokens just fed.
void Engine::keep_prompt_logprobs(Active& a, View<const float, 2> logits) {
  const auto& prompt = a.request.prompt;
  for (int64_t i = 0; i < logits.size[0]; ++i) {
    const auto next = static_cast<size_t>(a.fed - logits.size[0] + i + 1);
    if (next >= prompt.size()) return;
    const auto row = logits[i];
    a.prompt_tokens.push_back(
        a.sampler->describe(std::span<const float>(row.data, static_cast<size_t>(row.size[0])), prompt[next]));
  }
}

GenerationEvent Engine::take_token_or_fail(Active& a, std::span<const float> logits) {
  try {
    return take_token(a, logits);
  } catch (const std::exception& e) {
    return {a.id, {}, FinishReason::failed, e.what(), {}};
  }
}

GenerationEvent Engine::take_token(Active& a, std::span<const float> logits) {
  const GenerationRequest& r = a.request;
  const auto banned = a.generated < r.min_tokens ? std::span<const int32_t>(r.stop_ids) : std::span<const int32_t>();
  Span span(recorder_, "sample", 0, 0, {}, kPhaseCategory);
  const bool close = a.thinking && a.generated >= r.thinking.tokens;
  GenerationEvent event{a.id,
                        close ? a.sampler->describe(logits, r.thinking.end_id)
                              : a.sampler->sample(logits, cache_.length(a.sequence), banned),
                        FinishReason::none,
                        {},
                        std::move(a.prompt_tokens)};
  a.prompt_tokens.clear();
  const int32_t token = event.token.token;
  if (token == r.thinking.end_id) a.thinking = false;
  a.sampler->accept(token);
  a.next = token;
  ++a.generated;
  ++stats_.generated_tokens;
  if (std::find(r.stop_ids.begin(), r.stop_ids.end(), token) != r.stop_ids.end())
    event.finish = FinishReason::stop;
  else if (a.generated >= r.max_tokens)
    event.finish = FinishReason::length;
  return event;
}

void Engine::remove_finished(const std::vector<RequestId>& finished) {
  std::erase_if(running_, [&](const std::unique_ptr<Active>& a) {
    if (std::find(finished.begin(), finished.end(), a->id) == finished.end()) return false;
    cache_.release(a->sequence);
    promised_ -= a->reserved;
    return true;
  });
}

Engine::Stats Engine::stats() const {
  Stats s = stats_;
  s.waiting = waiting_.size(), s.running = running_.size();
  s.cache = cache_.usage();
  return s;
}

}  // namespace fathom
