#include "engine/engine.h"

#include <algorithm>
#include <chrono>
#include <random>

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

EngineOptions checked(EngineOptions o, const ModelConfig& config) {
  if (o.cache_tokens < 1 || o.max_sequences < 1 || o.chunk_tokens < 1)
    fail("engine: cache of {} tokens, {} sequences, chunks of {} tokens: each must be at least 1", o.cache_tokens,
         o.max_sequences, o.chunk_tokens);
  if (o.chunk_beside_decode < 0 || o.chunk_beside_decode > o.chunk_tokens)
    fail("engine: chunks of {} tokens beside decode: it must be from 0 to {}, the size of all chunks",
         o.chunk_beside_decode, o.chunk_tokens);
  if (o.speculate < -1 || o.speculate > kMostDrafts)
    fail("engine: {} drafts in a step: it must be from 0 to {}, or -1 for as many as pay", o.speculate, kMostDrafts);
  if (!(o.draft_acceptance <= 1)) fail("engine: a draft acceptance of {}: it must be at most 1", o.draft_acceptance);
  if (o.snapshots < -1) fail("engine: {} snapshots: it must be 0 or more, or -1 for as many as sequences", o.snapshots);
  if (o.snapshots == -1) o.snapshots = o.max_sequences;
  if (!o.prefix_cache) o.snapshots = 0;
  // One sequence has the rows before and in its window, and those of a chunk until they have been looked at.
  const int64_t least = config.window + PrefixCache::kKeepWindow + 2 * Cache::kWindowPage + o.chunk_tokens;
  if (o.window_tokens < 0 || (o.window_tokens > 0 && o.window_tokens < std::min(least, o.cache_tokens)))
    fail("engine: window rows of {} tokens are too few: a request in chunks of {} needs {}", o.window_tokens,
         o.chunk_tokens, std::min(least, o.cache_tokens));
  return o;
}

CacheBudget budget_of(const EngineOptions& o, int rings) {
  return {o.cache_tokens, o.max_sequences, -1, rings, o.snapshots, o.window_tokens};
}

/// Window rings for the drafts: of the checkpoint, or of `others` in their place.
int rings_of(const EngineOptions& o, const Weights& weights, const DraftSource* others) {
  if (o.speculate == 0) return 0;
  if (others) return others->rings();
  const int stages = draft_stages(weights);
  if (o.speculate > 0 && stages == 0)
    fail("speculation was asked for, but the checkpoint has no draft stages: leave --speculate off");
  return stages;
}

GenerationEvent event_of(const Active& a, SampledToken token, FinishReason finish) {
  GenerationEvent event{a.id, std::move(token), finish, {}, {}};
  event.cached_tokens = a.cached, event.started = a.started;
  event.drafts = a.use;
  return event;
}

/// A sampled token and drafts behind it.
bool verifies(const SegmentRequest& s) {
  return s.decodes && s.tokens.size() > 1;
}

std::span<const float> row_of(View<const float, 2> logits, int64_t row) {
  return {logits[row].data, static_cast<size_t>(logits.size[1])};
}

}  // namespace

Engine::Engine(const ModelConfig& config, const Weights& weights, const EngineOptions& options, Recorder* recorder,
               std::unique_ptr<DraftSource> drafts)
    : config_(config),
      options_(checked(options, config)),
      max_context_(options.max_context > 0 ? std::min(options.max_context, config.max_positions)
                                           : config.max_positions),
      recorder_(recorder),
      rings_(rings_of(options_, weights, drafts.get())),
      model_(config, weights, ops::op_table(options.ops, weights.memory->device().info(), options.fast), rings_ > 0),
      cache_(config, budget_of(options_, rings_), weights.devices()),
      prefix_(cache_),
      scheduler_(cache_, prefix_, options_) {
  if (rings_ > 0 && !drafts)
    drafts =
        own_drafts(config, weights, ops::op_table(options.ops, weights.memory->device().info(), options.fast), &model_);
  if (drafts && options_.speculate != 0)
    speculator_ = std::make_unique<Speculator>(
        std::move(drafts), options_.speculate, config, cache_, options_.draft_acceptance,
        model_.device().shares_host_memory() ? std::span<const int64_t>() : decode_sizes());
  for (int rank = 1; rank < cache_.ranks(); ++rank) model_.set_layers(rank, cache_.layers(rank));
  set_recorder(recorder);
  max_context_ = std::min(max_context_, options.cache_tokens);
  const int64_t verified = options_.max_sequences * (1 + (speculator_ ? speculator_->depth() : 0));
  model_.prepare(options_.chunk_tokens + verified, verified, verified, max_context_, cache_.layers());
  if (speculator_) speculator_->prepare(options_.max_sequences);
}

void Engine::check_request(const GenerationRequest& request) const {
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
}

RequestId Engine::add(GenerationRequest request) {
  check_request(request);
  auto a = std::make_unique<Active>();
  a->prompt = static_cast<int64_t>(request.prompt.size());
  const int64_t room = max_context_ - a->prompt;
  request.max_tokens = request.max_tokens == 0 ? room : std::min(request.max_tokens, room);
  request.prefix.on = request.prefix.on && options_.prefix_cache;
  a->sampler = std::make_unique<Sampler>(request.sampling, request.prompt, config_.vocab_size);
  if (request.constraint) a->form.emplace(request.constraint);
  a->thinking = request.thinking.end_id >= 0;
  a->tokens = std::move(request.prompt);
  a->request = std::move(request);
  a->request.prompt.clear();
  a->id = next_id_;
  scheduler_.add(std::move(a));
  return next_id_++;
}

void Engine::cancel(RequestId id) {
  if (Active* a = scheduler_.find(id)) a->cancelled = true;
}

void Engine::hold(RequestId id, bool held) {
  if (Active* a = scheduler_.find(id)) a->held = held;
}

void Engine::set_recorder(Recorder* recorder) {
  if (recorder == profile_) return;
  const int64_t start = Recorder::now();
  const auto seconds = [start] { return static_cast<double>(Recorder::now() - start) * 1e-9; };
  if (pacer_) {
    if (!recorder_) note_skipped();
    model_.set_recorder(nullptr);
    pacer_->switched(seconds());
    profile_->set_cost(pacer_->cost());
    pacer_.reset();
  }
  profile_ = recorder_ = recorder;
  model_.set_recorder(recorder);
  if (model_.traces_kernels()) {
    pacer_.emplace();
    pacer_->switched(seconds());
  }
  if (speculator_) speculator_->set_recorder(recorder);
}

void Engine::note_skipped() {
  if (skipped_ == 0) return;
  profile_->add({.name = kSkippedCategory,
                 .category = kSkippedCategory,
                 .start_ns = skipped_since_,
                 .end_ns = Recorder::now(),
                 .shape = {skipped_},
                 .thread = Recorder::this_thread()});
}

void Engine::record_steps(bool on) {
  model_.device().synchronize("recording steps");  // drafts may still be under way
  if (!on) skipped_since_ = Recorder::now(), skipped_ = 0;
  model_.record_steps(on);
  if (on) note_skipped();
  recorder_ = on ? profile_ : nullptr;
  if (speculator_) speculator_->set_recorder(recorder_);
}

/// A step of `size` tokens (0: none is like it) has ended: whether the next one is recorded.
void Engine::pace_profile(int64_t size, double seconds) {
  if (!pacer_) return;
  const bool recorded = recorder_ != nullptr;
  if (!recorded) ++skipped_;
  if (pacer_->step_ended(recorded, size, seconds) == recorded) return;
  const int64_t start = Recorder::now();
  try {
    record_steps(!recorded);
    pacer_->switched(static_cast<double>(Recorder::now() - start) * 1e-9);
  } catch (const Error& e) {  // the profile ends with what it has; the step is done
    if (!recorded) note_skipped();
    model_.set_recorder(nullptr);
    recorder_ = nullptr;
    if (speculator_) speculator_->set_recorder(nullptr);
    profile_->add({.name = "kernel records failed",
                   .category = kPhaseCategory,
                   .start_ns = start,
                   .end_ns = Recorder::now(),
                   .thread = Recorder::this_thread()});
    RecordingCost cost = pacer_->cost();
    cost.problem = e.what();
    profile_->set_cost(cost);
    pacer_.reset();
  }
}

void Engine::report_cancelled(const std::function<void(const GenerationEvent&)>& report) {
  for (const auto& a : scheduler_.take_cancelled()) report(event_of(*a, {}, FinishReason::cancelled));
}

bool Engine::step(const std::function<void(const GenerationEvent&)>& report) {
  report_cancelled(report);
  scheduler_.plan(work_);
  if (work_.segments.empty()) return false;

  const auto start = std::chrono::steady_clock::now();
  StepBatch batch;
  {
    Span span(recorder_, "plan_step", 0, 0, {}, kPhaseCategory);
    batch = plan_.build(config_, cache_, work_.segments);
  }
  const bool logits = !plan_draws();
  batch.sampling = View<const ops::RowSampling, 1>(draws_.data(), draws_.size());
  const Activations& out = model_.step(batch, cache_.layers(), logits ? Fetch::logits : Fetch::tokens);
  if (speculator_) speculator_->push(batch, out);
  ++steps_;
  bool prompts = false;
  for (size_t i = 0; i < work_.owners.size(); ++i) {
    const auto tokens = static_cast<int64_t>(work_.segments[i].tokens.size());
    cache_.commit(work_.owners[i]->sequence, tokens);
    prompts = prompts || !work_.segments[i].decodes;
    if (!verifies(work_.segments[i])) scheduler_.fed(*work_.owners[i], tokens);
  }
  std::vector<GenerationEvent> events;
  next_.clear();
  if (speculator_ && speculator_->wants_next()) next_.assign(static_cast<size_t>(batch.ids.size[0]), -1);
  take_logits(batch, out, events);
  if (!next_.empty()) speculator_->follow(batch, out, View<const int32_t, 1>(next_.data(), next_.size()));
  if (speculator_ && !prompts && !model_.recorded_anew()) {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    speculator_->step_took(batch.ids.size[0], took.count());
  }
  for (const GenerationEvent& event : events) report(event);
  if (speculator_) speculator_->propose(work_.owners, batch);  // nobody waits for the tokens meanwhile
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  pace_profile(prompts || model_.recorded_anew() ? 0 : batch.ids.size[0], took.count());
  return true;
}

/// Tokens of the requests whose segments gave logits; those that have ended leave the scheduler and the step's owners.
void Engine::take_logits(const StepBatch& batch, const Activations& out, std::vector<GenerationEvent>& events) {
  int64_t row = 0;
  for (size_t i = 0; i < work_.owners.size(); ++i) {
    Active& a = *work_.owners[i];
    const ops::Segment& fed = batch.segments(static_cast<int64_t>(i));
    if (work_.segments[i].logits == WantLogits::none) {
      note_next(a, fed);
      continue;
    }
    const auto rows = static_cast<int64_t>(work_.segments[i].tokens.size());
    if (verifies(work_.segments[i])) {
      verify(a, out, row, rows, events);
      row += rows;
    } else {
      if (work_.segments[i].logits == WantLogits::all) {
        keep_prompt_logprobs(a, out.logits.rows(row, rows));
        row += rows;
        if (cache_.length(a.sequence) < a.prompt) {
          note_next(a, fed);
          continue;
        }
        --row;  // the last one chooses the first token
      }
      a.draft = {};
      ++a.use.steps;
      events.push_back(take_row(a, out, row++));
    }
    note_next(a, fed);
    const FinishReason finish = events.back().finish;
    if (finish == FinishReason::none) continue;
    work_.owners[i] = nullptr;
    scheduler_.finish(a, finish == FinishReason::failed);
  }
}

/// The token behind each that was fed, of those that are part of the sequence.
void Engine::note_next(const Active& a, const ops::Segment& fed) {
  if (next_.empty()) return;
  const auto known = std::min(cache_.length(a.sequence), static_cast<int64_t>(a.tokens.size()) - 1);
  for (int32_t r = 0; r < fed.count && fed.position + r < known; ++r)
    next_[static_cast<size_t>(fed.first + r)] = a.tokens[static_cast<size_t>(fed.position + r) + 1];
}

/// Tokens behind the last one and behind each draft that was right. The cache goes back to where it would be without
/// the others.
void Engine::verify(Active& a, const Activations& out, int64_t row, int64_t rows,
                    std::vector<GenerationEvent>& events) {
  const size_t first = events.size();
  ++a.use.steps;
  const int64_t before = cache_.length(a.sequence) - rows;
  int64_t accepted = 0;
  bool right = true;
  for (int64_t i = 0; right; ++i) {
    const int32_t draft = i + 1 < rows ? a.draft.tokens[static_cast<size_t>(i)] : -1;
    const bool forced = draft >= 0 && forced_right(a);
    events.push_back(forced ? take_token_or_fail(a, {}, draft) : take_row(a, out, row + i));
    right = options_.draft_acceptance < 0 ? draft >= 0 && events.back().token.token == draft : forced;
    accepted += right;
    right = right && events.back().finish == FinishReason::none;
  }
  if (events.back().finish != FinishReason::none) a.draft.shorten(accepted);  // nobody has looked at the rest
  const bool failed = events.back().finish == FinishReason::failed;
  cache_.rollback(a.sequence, static_cast<int64_t>(a.tokens.size()) - (failed ? 0 : 1));
  scheduler_.fed(a, std::max<int64_t>(0, cache_.length(a.sequence) - before));
  speculator_->verified(a, accepted);
  for (size_t i = first; i < events.size(); ++i) events[i].drafts = a.use;
}

/// Whether the next draft is taken for right by EngineOptions::draft_acceptance.
bool Engine::forced_right(const Active& a) const {
  if (options_.draft_acceptance < 0) return false;
  std::mt19937_64 random(static_cast<uint64_t>(a.id) << 32 ^ a.tokens.size());
  return std::uniform_real_distribution<>()(random) < options_.draft_acceptance;
}

/// `logits`: those behind the prompt tokens just fed. A request that gave way in its prompt may feed some again.
void Engine::keep_prompt_logprobs(Active& a, View<const float, 2> logits) {
  const int64_t first = cache_.length(a.sequence) - logits.size[0];
  for (int64_t i = 0; i < logits.size[0]; ++i) {
    const int64_t next = first + i + 1;
    if (next >= a.prompt) return;
    if (next != static_cast<int64_t>(a.prompt_tokens.size()) + 1) continue;
    a.prompt_tokens.push_back(a.sampler->describe(row_of(logits, i), a.tokens[static_cast<size_t>(next)]));
  }
}

/// The token that row `row` of the logits gives; `out` is the model's present result.
GenerationEvent Engine::take_row(Active& a, const Activations& out, int64_t row) {
  const bool drawn = out.token.data && drawn_[static_cast<size_t>(row)] && device_draws(a);
  const int32_t token = drawn ? out.token(row) : -1;
  if (token < 0) model_.fetch_logits();  // `out` is the same object
  return take_token_or_fail(a, token < 0 ? row_of(out.logits, row) : std::span<const float>(), token);
}

/// How the device draws the tokens of the planned step. Returns whether it draws all of them.
bool Engine::plan_draws() {
  draws_.clear(), drawn_.clear();
  if (model_.device().shares_host_memory()) return false;
  for (size_t i = 0; i < work_.owners.size(); ++i) {
    const Active& a = *work_.owners[i];
    const SegmentRequest& s = work_.segments[i];
    if (s.logits == WantLogits::none) continue;
    const size_t rows = s.logits == WantLogits::all ? s.tokens.size() : 1;
    const bool device = device_draws(a);
    for (size_t r = 0; r < rows; ++r)
      draws_.push_back(device ? a.sampler->draw_at(static_cast<int64_t>(a.tokens.size() + r)) : ops::RowSampling{});
    drawn_.insert(drawn_.end(), rows, device);
  }
  return std::all_of(drawn_.begin(), drawn_.end(), [](uint8_t d) { return d != 0; });
}

/// Whether a device may draw the next token of a request: it depends on the logits alone, and nothing else is asked.
bool Engine::device_draws(const Active& a) const {
  const GenerationRequest& r = a.request;
  const bool may_end = a.generated() >= r.min_tokens || r.stop_ids.empty();
  const bool closes = a.thinking && a.generated() >= r.thinking.tokens;
  return a.sampler->plain() && !a.form && may_end && !closes;
}

GenerationEvent Engine::take_token_or_fail(Active& a, std::span<const float> logits, int32_t largest) {
  try {
    return take_token(a, logits, largest);
  } catch (const std::exception& e) {
    GenerationEvent event = event_of(a, {}, FinishReason::failed);
    event.error = e.what();
    return event;
  }
}

GenerationEvent Engine::take_token(Active& a, std::span<const float> logits, int32_t largest) {
  const GenerationRequest& r = a.request;
  const int64_t generated = a.generated();
  // Where the form of the output leaves nothing but its end, that comes before min_tokens too.
  const bool may_end = generated >= r.min_tokens || (a.form && a.form->must_end());
  const auto banned = may_end ? std::span<const int32_t>() : std::span<const int32_t>(r.stop_ids);
  const text::TokenSet* allowed = a.form ? a.form->allowed() : nullptr;
  Span span(recorder_, "sample", 0, 0, {}, kPhaseCategory);
  const bool close = a.thinking && generated >= r.thinking.tokens;
  const auto choose = [&] {
    if (largest >= 0) return SampledToken{largest, 0, {}};
    return close ? a.sampler->describe(logits, r.thinking.end_id)
                 : a.sampler->sample(logits, static_cast<int64_t>(a.tokens.size()), banned, allowed);
  };
  GenerationEvent event = event_of(a, choose(), FinishReason::none);
  event.prompt_tokens = std::move(a.prompt_tokens);
  a.prompt_tokens.clear();
  const int32_t token = event.token.token;
  if (token == r.thinking.end_id) a.thinking = false;
  a.sampler->accept(token);
  if (a.form && !a.form->accept(token)) throw std::logic_error("a token left the form of the output");
  a.tokens.push_back(token);
  ++generated_tokens_;
  if (std::find(r.stop_ids.begin(), r.stop_ids.end(), token) != r.stop_ids.end())
    event.finish = FinishReason::stop;
  else if (a.generated() >= r.max_tokens)
    event.finish = FinishReason::length;
  return event;
}

Engine::Stats Engine::stats() const {
  const Scheduler::Stats s = scheduler_.stats();
  return {
      steps_,        s.prompt_tokens,     generated_tokens_, s.waiting,
      s.running,     s.waiting_clients,   cache_.usage(),    s.cached_tokens,
      s.preemptions, s.recomputed_tokens, prefix_.stats(),   speculator_ ? speculator_->stats() : SpeculationStats{}};
}

}  // namespace fathom
