#include "serve/generation.h"

#include <algorithm>

#include "text/protocol.h"

namespace fathom::serve {
namespace {

bool holds(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

double seconds(Clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

class RunningGeneration final : public Generation, public std::enable_shared_from_this<RunningGeneration> {
 public:
  RunningGeneration(Service& service, const text::Tokenizer& tokenizer, TextRequest request,
                    std::shared_ptr<TextListener> listener, GenerationObserver* observer)
      : service_(service),
        request_(std::move(request)),
        listener_(std::move(listener)),
        observer_(observer),
        think_end_(tokenizer.added_id(text::protocol::kThinkEnd).value_or(-1)) {
    for (const auto& prompt : request_.prompts) {
      times_.usage.prompt_tokens += static_cast<int64_t>(prompt.size());
      for (int64_t k = 0; k < request_.n; ++k) choices_.emplace_back(tokenizer, request_.text);
    }
    left_ = static_cast<int>(choices_.size());
    times_.choices = request_.n, times_.max_tokens = request_.max_tokens;
  }

  std::optional<Refusal> submit() {
    times_.submitted = Clock::now();
    std::vector<Job> jobs;
    for (size_t i = 0; i < choices_.size(); ++i) jobs.push_back(job(static_cast<int>(i)));
    for (auto& prompt : request_.prompts) prompt = {};  // the jobs have them
    auto result = service_.submit(std::move(jobs));
    if (auto* refusal = std::get_if<Refusal>(&result)) return std::move(*refusal);
    const auto& ids = std::get<std::vector<JobId>>(result);
    for (size_t i = 0; i < ids.size(); ++i) choices_[i].job = ids[i];
    return std::nullopt;
  }

  void cancel() override {
    if (!listener_) return;
    listener_.reset();
    close("abort");
  }
  void hold(bool held) override {
    for (const Choice& c : choices_)
      if (!c.done) service_.hold(c.job, held);
  }
  const GenerationTimes& times() const override { return times_; }

  void on_event(int choice, const JobEvent& event) {
    Choice& c = choices_[static_cast<size_t>(choice)];
    if (!listener_ || c.done) return;
    switch (event.kind) {
      case JobEvent::Kind::accepted:
        if (accepted_ == 0 && event.before > 0 && request_.on_wait) request_.on_wait(event.before, event.wait_s);
        if (++accepted_ == choices_.size()) listener_->on_accepted();
        return;
      case JobEvent::Kind::token:
        return on_token(choice, c, event);
      case JobEvent::Kind::end:
        return on_end(choice, c, event);
    }
  }

 private:
  struct Choice {
    Choice(const text::Tokenizer& tokenizer, const TextOptions& options)
        : text(tokenizer, options), thinking(options.chat && options.thinking) {}
    TextStream text;
    JobId job = 0;
    bool done = false, thinking, calls_begun = false, calls_stand = false;
    int32_t last_token = -1;
    DraftUse drafts;
    Clock::time_point last_at{};
  };
  struct Port final : JobListener {
    Port(std::shared_ptr<RunningGeneration> o, int c) : owner(std::move(o)), choice(c) {}
    void on_event(const JobEvent& event) override { owner->on_event(choice, event); }
    std::shared_ptr<RunningGeneration> owner;
    int choice;
  };

  Job job(int choice) {
    const auto prompt = static_cast<size_t>(choice / request_.n), k = static_cast<size_t>(choice % request_.n);
    Job job;
    GenerationRequest& r = job.request;
    r.prompt = request_.prompts[prompt];
    r.sampling = request_.sampling;
    r.sampling.seed += k;
    r.max_tokens = request_.max_tokens, r.min_tokens = request_.min_tokens;
    if (!request_.ignore_end) r.stop_ids = request_.end_ids;
    r.stop_ids.insert(r.stop_ids.end(), request_.stop_ids.begin(), request_.stop_ids.end());
    r.thinking = request_.thinking;
    r.prompt_logprobs = request_.prompt_logprobs;
    r.prefix = request_.prefix;
    r.client = request_.client;
    r.constraint = request_.constraint;
    job.listener = std::make_shared<Port>(shared_from_this(), choice);
    if (request_.timeout.count() > 0) job.deadline = times_.submitted + request_.timeout;
    return job;
  }

  void on_token(int choice, Choice& c, const JobEvent& event) {
    const int32_t token = event.token.token;
    if (times_.first_token == Clock::time_point{}) {
      times_.first_token = event.at, times_.started = event.started;
      if (observer_) observer_->first_token(seconds(event.at - times_.submitted));
    } else if (observer_ && c.last_at != Clock::time_point{}) {
      observer_->next_token(seconds(event.at - c.last_at));
    }
    if (c.last_token < 0 && choice % request_.n == 0) times_.usage.cached_tokens += event.cached_tokens;
    times_.usage.drafts.add(event.drafts, c.drafts);
    c.drafts = event.drafts;
    times_.last_token = c.last_at = event.at;
    times_.usage.seconds = seconds(times_.last_token - times_.first_token);
    c.last_token = token;
    ++times_.usage.completion_tokens;
    if (c.thinking) ++times_.usage.reasoning_tokens;
    if (token == think_end_) c.thinking = false;

    ChoiceDelta delta;
    delta.choice = choice;
    delta.prompt_tokens = event.prompt_tokens;
    const bool shown = !holds(request_.end_ids, token) && !holds(request_.stop_ids, token);
    if (shown) {
      delta.piece = filtered(c, c.text.push(token));
      delta.tokens.push_back(event.token);
    }
    listener_->on_delta(delta);
    if (!c.text.stopped()) return;
    service_.cancel(c.job);
    finish(choice, c, ChoiceFinish::Kind::stop);
  }

  /// Keeps the books of tool calls; leaves out those that nobody wants.
  TextPiece filtered(Choice& c, TextPiece piece) {
    for (const auto& event : piece.calls) {
      if (event.kind == text::OutputKind::call_begin) c.calls_begun = true;
      if (event.kind == text::OutputKind::calls_done && c.calls_begun) c.calls_stand = true;
    }
    if (request_.one_call) std::erase_if(piece.calls, [](const text::OutputEvent& e) { return e.call > 0; });
    return piece;
  }

  void on_end(int choice, Choice& c, const JobEvent& event) {
    if (event.end == EndReason::stop || event.end == EndReason::length)
      return finish(choice, c, event.end == EndReason::stop ? ChoiceFinish::Kind::stop : ChoiceFinish::Kind::length);
    const auto listener = std::exchange(listener_, nullptr);
    close(name_of(event.end));
    listener->on_done(times_.usage, Failure{event.end, event.error});
  }

  void finish(int choice, Choice& c, ChoiceFinish::Kind kind) {
    ChoiceDelta delta;
    delta.choice = choice;
    delta.piece = filtered(c, c.text.finish());
    if (!delta.piece.content.empty() || !delta.piece.reasoning.empty() || !delta.piece.calls.empty())
      listener_->on_delta(delta);
    ChoiceFinish end{kind, "", -1};
    if (c.text.stopped()) {  // by the last token, perhaps
      end.kind = ChoiceFinish::Kind::stop;
      end.stop_string = request_.text.stop[static_cast<size_t>(c.text.matched())];
    } else if (kind == ChoiceFinish::Kind::stop && holds(request_.stop_ids, c.last_token)) {
      end.stop_id = c.last_token;
    }
    if (c.calls_stand) end.kind = ChoiceFinish::Kind::tool_calls;
    c.done = true;
    if (times_.finish.empty())
      times_.finish = end.kind == ChoiceFinish::Kind::length       ? "length"
                      : end.kind == ChoiceFinish::Kind::tool_calls ? "tool_calls"
                                                                   : "stop";
    listener_->on_finish(choice, end);
    if (--left_ > 0 || !listener_) return;
    const auto listener = std::exchange(listener_, nullptr);
    close(times_.finish);
    listener->on_done(times_.usage, std::nullopt);
  }

  /// Ends what still runs and tells the observer, once.
  void close(const std::string& why) {
    for (Choice& c : choices_)
      if (!c.done) service_.cancel(c.job), c.done = true;
    times_.finish = why;
    times_.done = Clock::now();
    if (observer_) observer_->ended(times_);
  }

  Service& service_;
  TextRequest request_;
  std::shared_ptr<TextListener> listener_;
  GenerationObserver* observer_;
  int32_t think_end_;
  std::vector<Choice> choices_;
  size_t accepted_ = 0;
  int left_ = 0;
  GenerationTimes times_;
};

}  // namespace

std::variant<std::shared_ptr<Generation>, Refusal> start_generation(Service& service, const text::Tokenizer& tokenizer,
                                                                    TextRequest request,
                                                                    std::shared_ptr<TextListener> listener,
                                                                    GenerationObserver* observer) {
  const auto generation =
      std::make_shared<RunningGeneration>(service, tokenizer, std::move(request), std::move(listener), observer);
  if (auto refusal = generation->submit()) return std::move(*refusal);
  return std::static_pointer_cast<Generation>(generation);
}

}  // namespace fathom::serve
