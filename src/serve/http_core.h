// What the HTTP server and its connections share. Internal to the HTTP layer.
#pragma once

#include <chrono>
#include <memory>
#include <unordered_set>

#include "serve/http.h"

namespace boost::asio {
class io_context;
}

namespace fathom::serve {

/// One client connection.
class HttpConnection {
 public:
  virtual ~HttpConnection() = default;
  virtual void start() = 0;
  /// Closes the socket at once and leaves HttpCore::connections.
  virtual void close() = 0;
  /// Ends it when something takes too long.
  virtual void check_time(std::chrono::steady_clock::time_point now) = 0;
  /// Closes when no request has begun.
  virtual void drain() = 0;
};

struct HttpCore {
  HttpOptions options;
  HttpHandler handler;
  boost::asio::io_context* io = nullptr;
  std::unordered_set<std::shared_ptr<HttpConnection>> connections;
  HttpServer::Counts counts;
  int64_t body_bytes = 0;  // of requests being received or read
  bool draining = false;   // every answer ends its connection

  void guarded(const std::function<void()>& task) const {
    try {
      task();
    } catch (const std::exception& e) {
      if (options.on_error) options.on_error(e.what());
    }
  }
};

/// Takes over the accepted socket `descriptor`.
std::shared_ptr<HttpConnection> make_connection(HttpCore& core, int descriptor, bool v6);

}  // namespace fathom::serve
