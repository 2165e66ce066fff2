// /health: does this server still turn requests into tokens?
//
// Proof is a token: one that the engine gave a moment ago to anybody, or one that is decoded for the question. No token
// within the deadline is 503, whatever else looks well.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "serve/api.h"

namespace fathom::serve {

struct HealthOptions {
  std::chrono::milliseconds deadline{10'000};
  std::vector<std::string> degraded;  // what this server lacks
  std::string version;
};

class Health {
 public:
  /// `http` outlives it.
  Health(const HealthOptions& options, HttpServer& http);
  std::vector<RouteEntry> routes();

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace fathom::serve
