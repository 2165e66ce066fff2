// The server: HTTP, service and APIs put together. Health, metrics, keys, origins, shutdown.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "serve/api.h"
#include "serve/backend.h"
#include "serve/options.h"

namespace fathom::serve {

struct ServerSetup {
  ServeOptions options;
  ApiModel model;
  std::string version;
  std::vector<std::string> degraded;  // what this server lacks, for /health
};

class Server {
 public:
  /// Listens and starts the engine's thread. `backend` and what setup.model points to outlive the server.
  Server(const ServerSetup& setup, Backend& backend);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  std::string url() const;
  int port() const;
  Service& service();

  /// Serves until shut_down() has done its work.
  void run();
  /// SIGINT and SIGTERM shut the server down: the first waits for running requests, the second does not.
  void catch_signals();
  /// From any thread. Takes nothing new and ends when what runs has ended, at the latest after the drain timeout.
  void shut_down();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fathom::serve
