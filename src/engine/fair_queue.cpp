#include "engine/fair_queue.h"

#include <algorithm>
#include <stdexcept>

#include "engine/scheduler.h"

namespace fathom {

void FairQueue::add(std::unique_ptr<Active> a) {
  Client& client = clients_[a->request.client];
  if (client.line.empty()) {
    client.served = std::max(client.served, turn_);
    ++in_line_;
  }
  a->client = &client;
  ++client.present, ++size_;
  client.line.push_back(std::move(a));
}

void FairQueue::put_back(std::unique_ptr<Active> a) {
  const auto place = std::lower_bound(back_.begin(), back_.end(), a->order,
                                      [](const auto& b, int64_t order) { return b->order < order; });
  back_.insert(place, std::move(a));
  ++size_;
}

Active* FairQueue::next(const std::function<bool(const Active&)>& may) const {
  for (const auto& a : back_)
    if (may(*a)) return a.get();
  Active* best = nullptr;
  for (const auto& [name, client] : clients_) {
    const auto first = std::find_if(client.line.begin(), client.line.end(), [&](const auto& a) { return may(*a); });
    if (first == client.line.end()) continue;
    if (!best || client.served < best->client->served ||
        (client.served == best->client->served && (*first)->id < best->id))
      best = first->get();
  }
  return best;
}

std::unique_ptr<Active> FairQueue::take(const Active& a) {
  const auto take_from = [&](auto& line) {
    const auto at = std::find_if(line.begin(), line.end(), [&](const auto& b) { return b.get() == &a; });
    if (at == line.end()) throw std::logic_error("FairQueue: a request that does not wait");
    auto out = std::move(*at);
    line.erase(at);
    --size_;
    return out;
  };
  if (a.order > 0) return take_from(back_);
  Client& client = *a.client;
  auto out = take_from(client.line);
  if (client.line.empty() && --in_line_ == 0) begin_anew();
  return out;
}

Active* FairQueue::find(RequestId id) const {
  const auto in = [&](const auto& line) -> Active* {
    const auto at = std::find_if(line.begin(), line.end(), [&](const auto& a) { return a->id == id; });
    return at == line.end() ? nullptr : at->get();
  };
  if (Active* a = in(back_)) return a;
  for (const auto& [name, client] : clients_)
    if (Active* a = in(client.line)) return a;
  return nullptr;
}

std::vector<const Active*> FairQueue::all() const {
  std::vector<const Active*> out;
  for (const auto& a : back_) out.push_back(a.get());
  for (const auto& [name, client] : clients_)
    for (const auto& a : client.line) out.push_back(a.get());
  return out;
}

void FairQueue::began(const Active& a, int64_t tokens) {
  // Who comes now begins where the turn is, and a little behind those that wait already: it moves by their even share.
  if (in_line_ > 0)
    turn_ = std::max(turn_, a.client->served) + static_cast<double>(tokens) / static_cast<double>(in_line_);
  charge(a, tokens);
}

void FairQueue::charge(const Active& a, int64_t tokens) {
  if (in_line_ > 0) a.client->served += static_cast<double>(tokens);
}

void FairQueue::leave(const Active& a) {
  if (a.generated() > 0) {
    const auto output = static_cast<double>(a.generated());
    usual_output_ = usual_output_ == 0 ? output : 0.9 * usual_output_ + 0.1 * output;
  }
  if (--a.client->present == 0)
    std::erase_if(clients_,
                  [&](const auto& c) { return c.second.present == 0 && (in_line_ == 0 || c.second.served <= turn_); });
}

/// Nobody is in line: what was served before is forgotten.
void FairQueue::begin_anew() {
  turn_ = 0;
  for (auto& [name, client] : clients_) client.served = 0;
}

double FairQueue::cost(const Active& a) const {
  const double output = usual_output_ > 0 ? usual_output_ : static_cast<double>(a.request.max_tokens);
  return static_cast<double>(a.prompt) + std::min(output, static_cast<double>(a.request.max_tokens));
}

int64_t FairQueue::before(const Active& a) const {
  if (a.order > 0) return std::count_if(back_.begin(), back_.end(), [&](const auto& b) { return b->order < a.order; });
  double mine = a.client->served;
  for (const auto& b : a.client->line) {
    if (b.get() == &a) break;
    mine += cost(*b);
  }
  int64_t out = static_cast<int64_t>(back_.size());
  for (const auto& [name, client] : clients_) {
    double at = client.served;
    for (const auto& b : client.line) {
      if (b.get() == &a || at > mine || (at == mine && b->id > a.id)) break;
      ++out, at += cost(*b);
    }
  }
  return out;
}

}  // namespace fathom
