#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <boost/asio.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <optional>

#include "base/error.h"
#include "serve/http_core.h"
#include "serve/http_text.h"

namespace fathom::serve {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using Clock = std::chrono::steady_clock;
using Failure = boost::system::error_code;

constexpr size_t kReadBytes = 16 << 10, kBodyReadBytes = 64 << 10;
constexpr size_t kWatchBytes = 512;          // read while an answer goes out
constexpr size_t kMostPipelined = 64 << 10;  // bytes of further requests kept meanwhile
constexpr auto kLingerTime = std::chrono::seconds(2);

class HttpExchange;

/// One client: reads requests one after the other, writes their answers.
class Connection final : public HttpConnection, public std::enable_shared_from_this<Connection> {
 public:
  Connection(HttpCore& server, int descriptor, bool v6) : server_(&server), socket_(std::in_place, *server.io) {
    socket_->assign(v6 ? tcp::v6() : tcp::v4(), descriptor);
  }

  void start() override;
  void close() override;
  void check_time(Clock::time_point now) override;
  void drain() override {
    if (phase_ == Phase::idle && buffer_.size() == 0) close();
  }

  // For the exchange.
  void send(std::initializer_list<std::string_view> parts);
  void answer_ended();
  void break_off() { broken_ = true, later_close(); }
  size_t pending() const { return out_.size() - out_at_; }
  bool keep_alive() const { return keep_alive_ && !server_->draining; }
  int minor_version() const { return minor_version_; }
  bool alive() const { return server_ && socket_ && !broken_; }
  void uncharge_body();
  HttpCore& server() { return *server_; }

 private:
  enum class Phase { idle, header, body, answering, lingering };
  void next_request();
  void read();
  void on_read(Failure error, size_t bytes);
  void feed();
  bool header_done();
  void dispatch();
  void refuse(int status, std::string_view message);
  void refuse_for(Failure error);
  std::string path_asked_for() const;
  void wait_writable();
  void flush();
  void answer_sent();
  void linger();
  void later_close();

  HttpCore* server_;
  std::optional<tcp::socket> socket_;
  boost::beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  Phase phase_ = Phase::idle;
  bool reading_ = false, header_seen_ = false, keep_alive_ = true, broken_ = false;
  bool waiting_ = false, ended_ = false;  // output: waits for room; the answer is complete
  int minor_version_ = 1;
  int64_t charged_ = 0;  // body bytes counted at the server
  std::string out_;      // what the socket has not taken, from out_at_ on
  size_t out_at_ = 0;
  Clock::time_point deadline_{}, progress_{};
  std::shared_ptr<HttpExchange> exchange_;
  std::string peer_;
};

class HttpExchange final : public Exchange {
 public:
  HttpExchange(std::shared_ptr<Connection> connection, HttpRequest request)
      : connection_(std::move(connection)), request_(std::move(request)), head_only_(request_.method == "HEAD") {}

  const HttpRequest& request() const override { return request_; }
  void add_header(std::string_view name, std::string_view value) override { headers_ += header_line(name, value); }

  void reply(int status, std::string_view content_type, std::string_view body) override {
    if (!open() || begun_) return;
    begun_ = true, status_ = status;
    ResponseHead head{
        status,  connection_->minor_version(), connection_->keep_alive(), false, -1, body.empty() ? "" : content_type,
        headers_};
    if (status != 204) head.content_length = static_cast<int64_t>(body.size());
    keep_ = head.keep_alive;
    put({head_text(head), head_only_ ? std::string_view() : body});
    complete();
  }

  void begin(int status, std::string_view content_type) override {
    if (!open() || begun_) return;
    begun_ = true, status_ = status;
    chunked_ = connection_->minor_version() > 0;
    keep_ = chunked_ && connection_->keep_alive();
    put({head_text({status, connection_->minor_version(), keep_, chunked_, -1, content_type, headers_})});
  }

  void write(std::string_view piece) override {
    if (!open() || piece.empty() || head_only_) return;  // an empty chunk would end the answer
    char buffer[24];
    if (chunked_)
      put({chunk_head(piece.size(), buffer), piece, "\r\n"});
    else
      put({piece});
    if (open() && !full_ && backlog() > connection_->server().options.backlog_high) {
      full_ = true;
      if (on_backlog_) on_backlog_(true);
    }
  }

  void end() override {
    if (!open() || !begun_) return;
    if (chunked_ && !head_only_) put({kLastChunk});
    complete();
  }

  void abort() override {
    if (open()) connection_->break_off();
  }

  void release_body() override {
    request_.body = {};
    if (connection_) connection_->uncharge_body();
  }
  bool open() const override { return connection_ && !complete_ && connection_->alive(); }
  bool begun() const override { return begun_; }
  size_t backlog() const override { return connection_ ? connection_->pending() : 0; }
  void on_close(std::function<void(bool)> call) override { on_close_ = std::move(call); }
  void on_backlog(std::function<void(bool)> call) override { on_backlog_ = std::move(call); }
  int status() const override { return status_; }
  uint64_t bytes_sent() const override { return bytes_; }

  // For the connection.
  bool keep() const { return keep_; }
  void drained(size_t left) {
    if (!full_ || left >= connection_->server().options.backlog_high / 4) return;
    full_ = false;
    if (on_backlog_) on_backlog_(false);
  }
  void closed(bool complete) {
    connection_.reset();
    on_backlog_ = nullptr;
    if (auto call = std::exchange(on_close_, nullptr)) call(complete);
  }

 private:
  void put(std::initializer_list<std::string_view> parts) {
    for (const std::string_view part : parts) bytes_ += part.size();
    connection_->send(parts);
  }
  void complete() {
    complete_ = true;
    connection_->answer_ended();
  }

  std::shared_ptr<Connection> connection_;
  HttpRequest request_;
  std::string headers_;
  std::function<void(bool)> on_close_, on_backlog_;
  uint64_t bytes_ = 0;
  int status_ = 0;
  bool head_only_, begun_ = false, complete_ = false, chunked_ = false, keep_ = false, full_ = false;
};

void Connection::start() {
  Failure ignored;
  socket_->set_option(tcp::no_delay(true), ignored);
  socket_->native_non_blocking(true, ignored);
  const auto peer = socket_->remote_endpoint(ignored);
  if (!ignored) peer_ = peer.address().to_string();
  progress_ = Clock::now();
  next_request();
}

void Connection::close() {
  if (!server_) return;
  const auto self = shared_from_this();
  uncharge_body();
  HttpCore& server = *std::exchange(server_, nullptr);
  socket_.reset();
  if (const auto exchange = std::exchange(exchange_, nullptr)) {
    --server.counts.exchanges;
    server.guarded([&] { exchange->closed(false); });
  }
  --server.counts.connections;
  server.connections.erase(self);
}

void Connection::uncharge_body() {
  if (server_) server_->body_bytes -= std::exchange(charged_, 0);
}

/// Closing in the middle of a call of the exchange would surprise its caller.
void Connection::later_close() {
  if (server_) asio::post(*server_->io, [self = shared_from_this()] { self->close(); });
}

void Connection::next_request() {
  parser_.emplace();
  parser_->eager(true);
  parser_->header_limit(static_cast<uint32_t>(server_->options.max_header_bytes));
  parser_->body_limit(static_cast<uint64_t>(server_->options.max_body_bytes));
  header_seen_ = ended_ = false;
  phase_ = Phase::idle;
  deadline_ = Clock::now() + server_->options.idle_timeout;
  if (buffer_.size() > 0)
    feed();
  else
    read();
}

void Connection::read() {
  if (reading_ || !alive()) return;
  reading_ = true;
  if (buffer_.size() == 0) buffer_.shrink_to_fit();
  const size_t bytes = phase_ == Phase::body ? kBodyReadBytes : phase_ == Phase::answering ? kWatchBytes : kReadBytes;
  socket_->async_read_some(buffer_.prepare(bytes), [self = shared_from_this()](Failure error, size_t n) {
    self->reading_ = false;
    self->on_read(error, n);
  });
}

void Connection::on_read(Failure error, size_t bytes) {
  if (!server_) return;
  if (error) return close();  // end of the stream too: nobody waits for the answer
  buffer_.commit(bytes);
  if (phase_ == Phase::lingering) {
    buffer_.consume(buffer_.size());
    read();
  } else if (phase_ != Phase::answering) {
    feed();
  } else if (buffer_.size() < kMostPipelined) {
    read();
  }
}

void Connection::feed() {
  while (alive()) {
    if (phase_ == Phase::idle && buffer_.size() > 0) {
      phase_ = Phase::header;
      deadline_ = Clock::now() + server_->options.header_timeout;
    }
    Failure error;
    const size_t used = buffer_.size() == 0 ? 0 : parser_->put(buffer_.data(), error);
    if (error && error != http::error::need_more) return refuse_for(error);
    buffer_.consume(used);
    if (parser_->is_header_done() && !header_seen_ && !header_done()) return;
    if (header_seen_) {
      const auto received = static_cast<int64_t>(parser_->get().body().size());
      server_->body_bytes += received - charged_;
      charged_ = received;
      if (server_->body_bytes > server_->options.max_bodies_bytes)
        return refuse(503, "too many large requests at once: try again later");
    }
    if (parser_->is_done()) return dispatch();
    if (used == 0 || buffer_.size() == 0) return read();
  }
}

/// Checks what the header says; false when the request was refused.
bool Connection::header_done() {
  header_seen_ = true;
  phase_ = Phase::body;
  deadline_ = Clock::now() + server_->options.body_timeout;
  const auto& message = parser_->get();
  minor_version_ = message.version() >= 11 ? 1 : 0;
  keep_alive_ = message.keep_alive();
  if (message.version() / 10 != 1) return refuse(501, "only HTTP/1.0 and HTTP/1.1 are spoken here"), false;
  if (minor_version_ == 1 && message.count(http::field::host) != 1)
    return refuse(400, "an HTTP/1.1 request has exactly one Host header"), false;
  if (message.count(http::field::transfer_encoding) > 0 && !message.chunked())
    return refuse(501, "of the transfer encodings only chunked is supported"), false;
  if (const auto length = parser_->content_length();
      length && *length > static_cast<uint64_t>(server_->options.max_body_bytes))
    return refuse_for(http::error::body_limit), false;
  const auto expect = message[http::field::expect];
  if (!parser_->is_done() && boost::beast::iequals(expect, "100-continue")) send({"HTTP/1.1 100 Continue\r\n\r\n"});
  return true;
}

void Connection::dispatch() {
  auto message = parser_->release();
  parser_.reset();
  HttpRequest request;
  request.method = std::string(message.method_string());
  request.peer = peer_;
  const bool target_ok = split_target({message.target().data(), message.target().size()}, request.path, request.query);
  for (const auto& field : message) {
    std::string name(field.name_string());
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    request.headers.emplace_back(std::move(name), std::string(field.value()));
  }
  request.body = std::move(message.body());
  if (!target_ok) return refuse(400, "the target of the request is not a path");
  phase_ = Phase::answering;
  exchange_ = std::make_shared<HttpExchange>(shared_from_this(), std::move(request));
  ++server_->counts.exchanges;
  progress_ = Clock::now();
  read();  // notices a client that leaves
  const auto exchange = exchange_;
  try {
    server_->handler(exchange);
  } catch (const std::exception& e) {
    if (server_ && server_->options.on_error) server_->options.on_error(e.what());
    if (exchange->begun())
      exchange->abort();
    else
      exchange->reply(500, "text/plain; charset=utf-8", "internal error\n");
  }
}

void Connection::refuse_for(Failure error) {
  const auto& o = server_->options;
  if (error == http::error::body_limit)
    return refuse(413, fmt::format("the body is larger than {} bytes, the limit of this server", o.max_body_bytes));
  if (error == http::error::header_limit || error == http::error::buffer_overflow)
    return refuse(431, fmt::format("the header is larger than {} bytes, the limit of this server", o.max_header_bytes));
  refuse(400, fmt::format("this is not HTTP: {}", error.message()));
}

/// Of the request that is being received: from its first line, which the parser may not have looked at so far.
std::string Connection::path_asked_for() const {
  std::string path, query;
  std::string_view target;
  if (parser_ && !parser_->get().target().empty()) {
    target = {parser_->get().target().data(), parser_->get().target().size()};
  } else {
    std::string_view line(static_cast<const char*>(buffer_.cdata().data()), buffer_.size());
    line = line.substr(0, line.find('\n'));
    const size_t begin = line.find(' ');
    if (begin == std::string_view::npos) return "";
    target = line.substr(begin + 1);
    target = target.substr(0, target.find_first_of(" \r"));
  }
  return split_target(target, path, query) ? path : "";
}

/// Answers a request that never reaches the handler, and closes.
void Connection::refuse(int status, std::string_view message) {
  ++(status == 408   ? server_->counts.timed_out
     : status == 503 ? server_->counts.refused
                     : server_->counts.bad_requests);
  const auto& write = server_->options.error_body;
  const std::string body = write ? write(status, message, path_asked_for()) : std::string(message) + "\n";
  const char* type = write ? "application/json" : "text/plain; charset=utf-8";
  keep_alive_ = false;
  phase_ = Phase::answering;
  uncharge_body();
  const std::string headers = status == 503 ? "retry-after: 1\r\n" : "";
  send({head_text({status, minor_version_, false, false, static_cast<int64_t>(body.size()), type, headers}), body});
  answer_ended();
}

void Connection::send(std::initializer_list<std::string_view> parts) {
  if (!alive()) return;
  size_t taken = 0;
  if (pending() == 0) {
    std::array<iovec, 4> vectors;
    size_t count = 0;
    for (const std::string_view part : parts)
      if (!part.empty()) vectors[count++] = {const_cast<char*>(part.data()), part.size()};
    msghdr message{};
    message.msg_iov = vectors.data();
    message.msg_iovlen = count;
    const ssize_t sent = ::sendmsg(socket_->native_handle(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) return break_off();
    taken = sent > 0 ? static_cast<size_t>(sent) : 0;
    progress_ = Clock::now();
  }
  for (std::string_view part : parts) {
    const size_t skip = std::min(taken, part.size());
    taken -= skip;
    out_.append(part.substr(skip));
  }
  if (pending() > 0) wait_writable();
}

void Connection::wait_writable() {
  if (waiting_ || !alive()) return;
  waiting_ = true;
  socket_->async_wait(tcp::socket::wait_write, [self = shared_from_this()](Failure error) {
    self->waiting_ = false;
    if (!self->server_) return;
    if (error) return self->close();
    self->flush();
  });
}

void Connection::flush() {
  if (!alive()) return;
  while (pending() > 0) {
    const ssize_t sent =
        ::send(socket_->native_handle(), out_.data() + out_at_, pending(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return close();
    if (sent <= 0) break;
    out_at_ += static_cast<size_t>(sent);
    progress_ = Clock::now();
  }
  if (out_at_ == out_.size())
    out_ = {}, out_at_ = 0;
  else if (out_at_ > (64 << 10))
    out_.erase(0, std::exchange(out_at_, 0));
  if (pending() > 0) wait_writable();
  if (const auto exchange = exchange_) server_->guarded([&] { exchange->drained(pending()); });
  if (alive() && ended_ && pending() == 0) answer_sent();
}

void Connection::answer_ended() {
  ended_ = true;
  // Not at once: the handler is still running, and the next pipelined request would run inside it.
  if (server_ && pending() == 0)
    asio::post(*server_->io, [self = shared_from_this()] {
      if (self->alive() && self->ended_ && self->pending() == 0) self->answer_sent();
    });
}

void Connection::answer_sent() {
  ended_ = false;
  uncharge_body();
  bool keep = keep_alive_ && !server_->draining;
  if (const auto exchange = std::exchange(exchange_, nullptr)) {
    keep = keep && exchange->keep();
    --server_->counts.exchanges;
    server_->guarded([&] { exchange->closed(true); });
  }
  if (!alive()) return;
  if (keep)
    next_request();
  else
    linger();
}

/// Lets the client read the answer before the connection goes: closing with unread input would reset it.
void Connection::linger() {
  phase_ = Phase::lingering;
  deadline_ = Clock::now() + kLingerTime;
  Failure ignored;
  socket_->shutdown(tcp::socket::shutdown_send, ignored);
  buffer_.consume(buffer_.size());
  read();
}

void Connection::check_time(Clock::time_point now) {
  if (!alive()) return;
  if (pending() > 0 && now - progress_ > server_->options.write_timeout) {
    ++server_->counts.timed_out;
    return close();
  }
  if (phase_ == Phase::answering || now < deadline_) return;
  if (phase_ == Phase::header || phase_ == Phase::body)
    refuse(408, "the request did not arrive in time");
  else
    close();
}

}  // namespace

std::shared_ptr<HttpConnection> make_connection(HttpCore& core, int descriptor, bool v6) {
  return std::make_shared<Connection>(core, descriptor, v6);
}

}  // namespace fathom::serve
