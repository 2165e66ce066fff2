#include "engine/scheduler.h"

#include <algorithm>
#include <stdexcept>

namespace fathom {
namespace {

/// Output that a request is given room for when it is admitted: one entry page.
constexpr int64_t kGrowth = Cache::kEntryPage;

/// Rows of logits in one step for a request that wants those of its prompt: a row is as wide as the vocabulary.
constexpr int64_t kPromptLogitRows = 64;

constexpr int64_t pages_for(int64_t tokens, int64_t page) {
  return (tokens + page - 1) / page;
}

}  // namespace

Scheduler::Scheduler(Cache& cache, PrefixCache& prefix, const EngineOptions& options)
    : cache_(cache), prefix_(prefix), options_(options) {}

void Scheduler::add(std::unique_ptr<Active> request) {
  queue_.add(std::move(request));
}

Active* Scheduler::find(RequestId id) {
  const auto running = std::find_if(running_.begin(), running_.end(), [&](const auto& a) { return a->id == id; });
  return running != running_.end() ? running->get() : queue_.find(id);
}

std::vector<std::unique_ptr<Active>> Scheduler::take_cancelled() {
  std::vector<std::unique_ptr<Active>> out;
  for (size_t i = 0; i < running_.size();) {
    if (running_[i]->cancelled)
      out.push_back(stop_running(*running_[i]));
    else
      ++i;
  }
  for (const Active* a : queue_.all())
    if (a->cancelled) out.push_back(queue_.take(*a));
  for (const auto& a : out) queue_.leave(*a);
  return out;
}

int64_t Scheduler::before(RequestId id) const {
  const Active* a = queue_.find(id);
  const auto room = static_cast<int64_t>(options_.max_sequences) - static_cast<int64_t>(running_.size());
  return a ? std::max<int64_t>(0, queue_.before(*a) + 1 - room) : 0;
}

/// Most tokens that may come from the prefix cache: the last one is fed for its logits, and a request that wants the
/// log probabilities of its prompt feeds all whose successor has none yet.
int64_t Scheduler::hit_limit(const Active& a) const {
  const auto all = static_cast<int64_t>(a.tokens.size()) - 1;
  const auto described = static_cast<int64_t>(a.prompt_tokens.size());
  return a.request.prompt_logprobs && a.generated() == 0 ? std::min(all, described) : all;
}

/// Pages that a request has once its tokens and a little growth are in the cache.
PageCount Scheduler::wanted(const Active& a) const {
  const auto have = static_cast<int64_t>(a.tokens.size());
  const int64_t tokens = have + std::min(kGrowth, a.request.max_tokens - a.generated());
  const int64_t window = std::min<int64_t>(tokens, cache_.config().window + Cache::kRing4);
  return {pages_for(window, Cache::kWindowPage) + 1, pages_for(tokens, Cache::kEntryPage)};
}

bool Scheduler::fits(const Active& a) const {
  if (!cache_.can_create()) return false;
  if (running_.empty()) return true;  // add() has checked that it fits alone
  const auto pages_of = [](std::span<const int32_t> pages) {
    return static_cast<int64_t>(pages.size()) - std::count(pages.begin(), pages.end(), -1);
  };
  const PagePool &windows = cache_.windows(), &entries = cache_.entries();
  PageCount room{windows.free() + windows.cached(), entries.free() + entries.cached()};
  room.window -=
      pages_for(options_.chunk_tokens, Cache::kWindowPage);  // of all prompts together, until they are trimmed
  for (const auto& r : running_) {
    const PageCount want = wanted(*r);
    room.window -= std::max<int64_t>(0, want.window - pages_of(cache_.window_pages(r->sequence)));
    room.entry -= std::max<int64_t>(0, want.entry - pages_of(cache_.entry_pages(r->sequence)));
  }
  if (room.window <= 0 || room.entry <= 0) return false;
  PageCount need = wanted(a);
  if (a.request.prefix.on) {
    // Pages of the hit that nobody has so far come out of the room too; half of the last one may have to be copied.
    const auto hit = prefix_.find(a.request.prefix.salt, a.tokens, hit_limit(a));
    need.window = std::max<int64_t>(0, need.window - hit.pages.window) + hit.cached.window;
    need.entry += hit.cached.entry - hit.pages.entry + (hit.rows % Cache::kEntryPage != 0);
  }
  return need.window <= room.window && need.entry <= room.entry;
}

/// A running request is computing what this one begins with too: whole blocks that are not in the prefix cache yet.
bool Scheduler::awaits_prefix(const Active& a) const {
  if (!a.request.prefix.on) return false;
  int64_t shared = 0;
  for (const auto& r : running_) {
    if (r->held || r->generated() > 0 || !r->request.prefix.on || r->request.prefix.salt != a.request.prefix.salt)
      continue;
    const auto end = std::mismatch(a.tokens.begin(), a.tokens.end(), r->tokens.begin(), r->tokens.end()).first;
    shared = std::max(shared, std::min<int64_t>(end - a.tokens.begin(), hit_limit(a)));
  }
  shared = shared / PrefixCache::kBlock * PrefixCache::kBlock;
  return shared > 0 && prefix_.find(a.request.prefix.salt, a.tokens, hit_limit(a)).length < shared - Cache::kRing4;
}

void Scheduler::admit() {
  const auto may_start = [this](const Active& a) { return !a.held && !awaits_prefix(a); };
  while (Active* a = queue_.next(may_start)) {
    if (fits(*a)) {
      start(queue_.take(*a));
      continue;
    }
    Active* idle = held_running();
    if (!idle) return;  // all others wait with it
    preempt(*idle);
  }
}

void Scheduler::start(std::unique_ptr<Active> a) {
  if (a->request.prefix.on) {
    a->sequence = prefix_.open(a->request.prefix.salt, a->tokens, hit_limit(*a));
  } else {
    a->sequence = cache_.create();
    if (a->request.assumed > 0) assume(*a);
  }
  a->running = true;
  const int64_t found = cache_.length(a->sequence);
  if (a->computed < 0) {
    a->computed = found;
    a->cached = a->request.assumed > 0 ? 0 : found;
    stats_.cached_tokens += a->cached;
    a->order = ++starts_;
    a->started = std::chrono::steady_clock::now();
    queue_.began(*a, a->prompt - found);
  }
  a->kept = cache_.rows(a->sequence) / Cache::kEntryPage * Cache::kEntryPage;
  const auto place = std::lower_bound(running_.begin(), running_.end(), a->order,
                                      [](const auto& b, int64_t order) { return b->order < order; });
  running_.insert(place, std::move(a));
}

/// fits() has seen to the pages.
void Scheduler::assume(Active& a) {
  const int64_t tokens = std::min(a.request.assumed, a.prompt - 1);
  if (tokens > 0 && !cache_.assume(a.sequence, tokens))
    throw std::logic_error("Scheduler: no pages for an assumed prompt");
}

Active* Scheduler::held_running() {
  const auto held = std::find_if(running_.rbegin(), running_.rend(), [](const auto& a) { return a->held; });
  return held == running_.rend() ? nullptr : held->get();
}

/// Gives the sequence back; what it has computed stays for others, or for itself.
void Scheduler::leave_cache(Active& a) {
  if (a.request.prefix.on)
    prefix_.close(a.sequence, a.request.prefix.salt, a.tokens);
  else
    cache_.release(a.sequence);
  a.running = false;
}

std::unique_ptr<Active> Scheduler::stop_running(Active& a) {
  leave_cache(a);
  const auto place = std::find_if(running_.begin(), running_.end(), [&](const auto& b) { return b.get() == &a; });
  auto out = std::move(*place);
  running_.erase(place);
  return out;
}

void Scheduler::preempt(Active& a) {
  queue_.put_back(stop_running(a));
  ++stats_.preemptions;
}

void Scheduler::finish(Active& a, bool damaged) {
  const auto ended = stop_running(a);
  queue_.leave(*ended);
  if (damaged && ended->request.prefix.on) prefix_.forget(ended->request.prefix.salt, ended->tokens);
}

/// Room for the tokens, at the cost of others if need be. False when the request itself had to give way.
bool Scheduler::reserve(Active& a, int64_t tokens) {
  if (prefix_.reserve(a.sequence, tokens)) return true;
  for (const auto& r : running_)
    cache_.trim_window(r->sequence, Cache::kRing4);  // what is only of use to later requests
  while (!prefix_.reserve(a.sequence, tokens)) {
    Active* victim = held_running();
    if (!victim) victim = running_.back().get();
    if (running_.size() == 1) throw std::logic_error("Scheduler: a request does not fit alone");
    const bool itself = victim == &a;
    preempt(*victim);
    if (itself) return false;
  }
  return true;
}

/// Room for the last token and the draft behind it. Nobody gives way for a draft: it is dropped when pages are lacking.
bool Scheduler::feed_draft(Active& a) {
  if (a.draft.empty()) return false;
  if (!prefix_.reserve(a.sequence, 1 + static_cast<int64_t>(a.draft.size()))) {
    a.draft = {};
    return false;
  }
  a.fed.assign(1, a.tokens.back());
  a.fed.insert(a.fed.end(), a.draft.tokens.begin(), a.draft.tokens.end());
  return true;
}

/// Prompt tokens that the next step may take.
int64_t Scheduler::prompt_budget() const {
  const bool decodes =
      std::any_of(running_.begin(), running_.end(), [&](const auto& a) { return !a->held && a->decodes(cache_); });
  return decodes && options_.chunk_beside_decode > 0 ? options_.chunk_beside_decode : options_.chunk_tokens;
}

void Scheduler::plan(StepWork& work) {
  work.segments.clear(), work.owners.clear();
  admit();
  int64_t budget = prompt_budget();
  std::vector<Active*> order;
  for (const auto& a : running_)
    if (!a->held) order.push_back(a.get());
  for (Active* a : order) {  // who gives way comes later, or is held
    if (!a->running) break;  // it and all behind it have given way
    const int64_t length = cache_.length(a->sequence), left = static_cast<int64_t>(a->tokens.size()) - length;
    const bool decodes = a->decodes(cache_);
    const bool all = a->request.prompt_logprobs && length < a->prompt && a->generated() == 0;
    if (decodes && feed_draft(*a)) {
      work.segments.push_back({a->sequence, a->fed, WantLogits::all, true});
      work.owners.push_back(a);
      continue;
    }
    const int64_t n = decodes ? 1 : std::min({budget, left, all ? kPromptLogitRows : left});
    if (n == 0) continue;
    if (!reserve(*a, n)) break;
    if (!decodes) budget -= n;
    const auto logits = all ? WantLogits::all : n == left ? WantLogits::last : WantLogits::none;
    work.segments.push_back(
        {a->sequence, std::span<const int32_t>(a->tokens).subspan(static_cast<size_t>(length), static_cast<size_t>(n)),
         logits, decodes});
    work.owners.push_back(a);
  }
}

void Scheduler::fed(Active& a, int64_t tokens) {
  const int64_t length = cache_.length(a.sequence), from = length - tokens;
  const int64_t fresh = std::clamp<int64_t>(std::min(length, a.prompt) - std::max(from, a.computed), 0, tokens);
  stats_.prompt_tokens += fresh;
  stats_.recomputed_tokens += std::clamp<int64_t>(std::min(length, a.computed) - from, 0, tokens);
  queue_.charge(a, std::max<int64_t>(0, length - std::max({from, a.computed, a.prompt})));
  a.computed = std::max(a.computed, length);
  if (a.request.prefix.on) {
    const int64_t rows = cache_.rows(a.sequence);
    // A later request may share the prompt and not the answer: thinking is left out of what follows.
    if (a.generated() == 0 && length == a.prompt)
      prefix_.keep_end(a.sequence, a.request.prefix.salt, a.tokens);
    else if (rows - a.kept >= Cache::kEntryPage)
      prefix_.keep(a.sequence, a.request.prefix.salt, a.tokens);
    if (rows - a.kept >= Cache::kEntryPage) a.kept = rows / Cache::kEntryPage * Cache::kEntryPage;
  }
  cache_.trim_window(a.sequence, a.request.prefix.on ? PrefixCache::kKeepWindow : Cache::kRing4);
}

Scheduler::Stats Scheduler::stats() const {
  Stats s = stats_;
  s.waiting = queue_.size(), s.waiting_clients = queue_.clients(), s.running = running_.size();
  return s;
}

}  // namespace fathom
