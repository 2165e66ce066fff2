// The HTTP layer: sockets, HTTP/1.1, limits and timeouts. Knows nothing of models or JSON.
//
// One thread (the caller of HttpServer::run) does all input and output. A request is handed to the handler as an
// Exchange; the answer goes out whole or as a stream of pieces. Pieces are sent straight to the socket; what the socket
// does not take is kept, and a reader that is too slow is reported (on_backlog) and in the end cut off, so that it
// never holds another connection. All methods of an Exchange belong to that thread; post() gets there from any other.
//
// Bad HTTP is answered here: 400 broken syntax, 408 a request that comes too slowly, 413 and 431 too large a body or
// header, 501 what HTTP allows and this server does not do, 503 too many connections.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fathom::serve {

struct HttpRequest {
  std::string method;                                        // "GET"
  std::string path;                                          // without the query
  std::string query;                                         // behind '?', not decoded
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case, in order
  std::string body;
  std::string peer;  // address of the client

  /// Value of the first header of this (lower case) name; empty when there is none.
  std::string_view header(std::string_view name) const;
};

/// One request and its answer. Exactly one of reply() and begin()...end() must follow, sooner or later; calls after the
/// client has gone do nothing.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual const HttpRequest& request() const = 0;

  /// Adds a header to the answer; before reply() or begin(). Line breaks in the value become spaces.
  virtual void add_header(std::string_view name, std::string_view value) = 0;
  /// The whole answer.
  virtual void reply(int status, std::string_view content_type, std::string_view body) = 0;

  /// A streamed answer: begin(), any number of write(), end(). write() never blocks.
  virtual void begin(int status, std::string_view content_type) = 0;
  virtual void write(std::string_view piece) = 0;
  virtual void end() = 0;
  /// Ends a begun answer so that the client sees it was not complete: the connection is closed without the last chunk.
  virtual void abort() = 0;

  /// Frees the body of the request, once it has been read.
  virtual void release_body() = 0;

  /// False when the answer is complete or the client is gone.
  virtual bool open() const = 0;
  virtual bool begun() const = 0;
  /// Bytes written that the client has not taken yet.
  virtual size_t backlog() const = 0;

  /// Called once when the answer is complete, or when the client has gone before (`complete` false).
  virtual void on_close(std::function<void(bool complete)> call) = 0;
  /// Called with true when the backlog has grown past HttpOptions::backlog_high, and with false when it has shrunk
  /// again below a quarter of it.
  virtual void on_backlog(std::function<void(bool full)> call) = 0;

  /// Status that was sent; 0 before.
  virtual int status() const = 0;
  virtual uint64_t bytes_sent() const = 0;
};

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 0;  // 0: any free one
  int64_t max_connections = 4096;
  int64_t max_header_bytes = 32 << 10;
  int64_t max_body_bytes = 32 << 20;
  int64_t max_bodies_bytes = 256 << 20;              // of all requests that are being received
  std::chrono::milliseconds header_timeout{10'000};  // from its first byte to its last
  std::chrono::milliseconds body_timeout{60'000};    // the whole body
  std::chrono::milliseconds idle_timeout{75'000};    // between requests of a connection
  std::chrono::milliseconds write_timeout{30'000};   // without the client taking a byte
  size_t backlog_high = 64 << 10;
  /// The body, JSON, of an error that is answered here, for a request of `path` (as far as it is known; perhaps empty).
  /// Null: the message as plain text.
  std::function<std::string(int status, std::string_view message, std::string_view path)> error_body;
  /// Told what a handler or a task threw: a bug, but no reason to end.
  std::function<void(const std::string&)> on_error;
};

/// Throws Error when `host` and `port` cannot be listened on. For knowing it before hours of loading.
void check_address(const std::string& host, int port);

using HttpHandler = std::function<void(const std::shared_ptr<Exchange>&)>;

class HttpServer {
 public:
  /// Binds and listens. Throws Error naming address and port when that is not possible.
  HttpServer(const HttpOptions& options, HttpHandler handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;
  /// "http://127.0.0.1:8000"
  std::string url() const;

  /// Serves until stop().
  void run();
  /// Runs `task` on the serving thread, after what is being done. From any thread.
  void post(std::function<void()> task);
  /// Runs `task` on the serving thread after `delay`. From the serving thread.
  void after(std::chrono::milliseconds delay, std::function<void()> task);
  /// Calls `call` for each SIGINT and SIGTERM from now on. From the serving thread or before run().
  void on_signal(std::function<void(int count)> call);

  /// Takes no new connections; connections that wait for a request are closed, others after their answer.
  void close_when_answered();
  /// Closes everything and makes run() return. From any thread.
  void stop();

  struct Counts {
    int64_t connections = 0;   // open now
    int64_t exchanges = 0;     // being answered now
    int64_t accepted = 0;      // connections so far
    int64_t refused = 0;       // for lack of room
    int64_t timed_out = 0;     // requests that came too slowly, readers that took nothing
    int64_t bad_requests = 0;  // answered 4xx or 501 by this layer
  };
  /// From the serving thread.
  Counts counts() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace fathom::serve
