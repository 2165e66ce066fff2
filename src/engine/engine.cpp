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
  return o;
}

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
  const int64_t room = max_context_ - prompt;
  request.max_tokens = request.max_tokens == 0 ? room : std::min(request.max_tokens, room);

  Active a;
  a.id = next_id_;
  a.sampler = std::make_unique<Sampler>(request.sampling, request.prompt, config_.vocab_size);
  a.reserved = prompt + request.max_tokens;
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
  for (RequestId id : ended) report({id, {}, FinishReason::cancelled, {}});
}

void Engine::choose_work(std::vector<SegmentRequest>& segments, std::vector<Active*>& owners) {
  int64_t budget = options_.chunk_tokens;
  for (auto& a : running_) {
    const auto prompt = static_cast<int64_t>(a->request.prompt.size());
    if (a->next >= 0) {
      segments.push_back({a->sequence, std::span(&a->next, 1), WantLogits::last});
    } else if (budget > 0) {
      const int64_t n = std::min(budget, prompt - a->fed);
      const auto part =
          std::span<const int32_t>(a->request.prompt).subspan(static_cast<size_t>(a->fed), static_cast<size_t>(n));
      segments.push_back({a->sequence, part, a->fed + n == prompt ? WantLogits::last : WantLogits::none});
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
  if (segments.empty()) return !waiting_.empty();

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
    const auto logits = out.logits[row++];
    events.push_back(
        take_token_or_fail(*owners[i], std::span<const float>(logits.data, static_cast<size_t>(logits.size[0]))));
    if (events.back().finish != FinishReason::none) finished.push_back(owners[i]->id);
  }
  remove_finished(finished);
  for (const GenerationEvent& event : events) report(event);
  return true;
}

GenerationEvent Engine::take_token_or_fail(Active& a, std::span<const float> logits) {
  try {
    return take_token(a, logits);
  } catch (const std::exception& e) {
    return {a.id, {}, FinishReason::failed, e.what()};
  }
}

GenerationEvent Engine::take_token(Active& a, std::span<const float> logits) {
  const GenerationRequest& r = a.request;
  const auto banned = a.generated < r.min_tokens ? std::span<const int32_t>(r.stop_ids) : std::span<const int32_t>();
  Span span(recorder_, "sample", 0, 0, {}, kPhaseCategory);
  GenerationEvent event{a.id, a.sampler->sample(logits, cache_.length(a.sequence), banned), FinishReason::none, {}};
  const int32_t token = event.token.token;
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
