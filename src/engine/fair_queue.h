// Who waits for a place in the engine, and whose turn is next.
//
// Turns go round the clients so that each gets the same number of tokens, prompt and output together, as long as it has
// something to wait for (virtual token counters: Sheng et al., "Fairness in Serving Large Language Models", 2024). One
// with five hundred requests and one with a single request get every other turn. The requests of one client keep their
// order. A client that comes later begins with the count of those whose turn it is: nobody saves up turns by being
// away, and however many new ones come, everyone's turn comes. What is computed while nobody waits costs nobody else
// anything and is not counted.
//
// A request that had to give way goes on before all that have never run, in the order in which they started.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/request.h"

namespace fathom {

struct Active;

class FairQueue {
 public:
  struct Client {
    std::deque<std::unique_ptr<Active>> line;  // that have never run, in order of arrival
    double served = 0;                         // tokens
    int64_t present = 0;                       // requests, waiting or running
  };

  /// A new request. From here until leave() its `client` says whose it is.
  void add(std::unique_ptr<Active> a);
  /// One that has run and goes on later.
  void put_back(std::unique_ptr<Active> a);
  /// Whose turn it is, of those that `may` start; null when there is none.
  Active* next(const std::function<bool(const Active&)>& may) const;
  /// Takes it out, to run or to end.
  std::unique_ptr<Active> take(const Active& a);
  Active* find(RequestId id) const;
  std::vector<const Active*> all() const;

  /// A new request was taken to run, and so many tokens of its prompt are to be computed.
  void began(const Active& a, int64_t tokens);
  /// Counts tokens of its output.
  void charge(const Active& a, int64_t tokens);
  /// The request has ended, waiting or running; it is not in the queue any more.
  void leave(const Active& a);

  /// Requests that have their turn before it, as things stand: outputs are taken to be as long as those before them.
  int64_t before(const Active& a) const;
  size_t size() const { return size_; }
  /// Clients that wait for the turn of a new request.
  size_t clients() const { return in_line_; }

 private:
  double cost(const Active& a) const;
  void begin_anew();

  std::map<std::string, Client, std::less<>> clients_;
  std::vector<std::unique_ptr<Active>> back_;  // gave way, in the order in which they started
  size_t size_ = 0, in_line_ = 0;
  double turn_ = 0;          // `served` of a client that comes now
  double usual_output_ = 0;  // tokens, of requests that ended lately
};

}  // namespace fathom
