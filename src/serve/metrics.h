// Prometheus metrics. Names are vLLM's where the meaning is the same, so that its dashboards work; others start with
// fathom. Used on the HTTP thread.
#pragma once

#include <memory>
#include <string>

#include "serve/generation.h"
#include "serve/http.h"
#include "serve/service.h"

namespace fathom::serve {

class Metrics final : public GenerationObserver {
 public:
  explicit Metrics(const std::string& model);
  ~Metrics() override;

  void first_token(double seconds) override;
  void next_token(double seconds) override;
  void ended(const GenerationTimes& times) override;

  /// One answered request of any kind. `path` is a route's, not a client's.
  void answered(const std::string& path, int status);
  /// A request that the service refused for lack of room.
  void refused();

  /// What the engine has done before the server began is not counted.
  void start_from(const Engine::Stats& stats);
  /// The text of /metrics.
  std::string text(const Service::Snapshot& service, const Backend::Limits& limits, const HttpServer::Counts& http);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fathom::serve
