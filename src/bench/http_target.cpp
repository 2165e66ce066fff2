// A server by its URL. One thread drives all connections; a connection is kept for the next request.
#include <fmt/format.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <deque>
#include <random>

#include "base/error.h"
#include "base/interrupt.h"
#include "bench/cpu_time.h"
#include "bench/server_counts.h"
#include "bench/stream.h"
#include "bench/target.h"
#include "bench/url.h"

namespace fathom::bench {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;
using Clock = std::chrono::steady_clock;
using Code = boost::system::error_code;

constexpr auto await = asio::as_tuple(asio::use_awaitable);

struct Connection {
  explicit Connection(asio::io_context& io) : stream(io) {}
  beast::tcp_stream stream;
  beast::flat_buffer buffer;
  bool used = false;
};

class HttpTarget : public Target {
 public:
  explicit HttpTarget(const HttpOptions& o) : options_(o), address_(parse_url(o.url)) {
    Code error;
    tcp::resolver resolver(io_);
    endpoints_ = resolver.resolve(address_.host, address_.port, error);
    if (error) fail("{}: cannot find the host: {}", printable(o.url, 300), error.message());
    if (options_.model.empty()) options_.model = ask_for_model();
  }

  std::string describe() const override {
    return fmt::format("{}, model {}, {}", printable(options_.url, 200), printable(options_.model, 100),
                       options_.chat ? "chat completions" : "completions");
  }

  LevelRun run(const LevelPlan& plan, Workload& workload, const LevelProgress& progress) override {
    Level level{plan, workload, progress, {}, 0, 0, Clock::now(), {}};
    level.records.resize(static_cast<size_t>(plan.requests));
    const DraftCounts before = server_counts();
    const double cpu = cpu_time();
    io_.restart();
    if (plan.rate > 0) {
      asio::co_spawn(io_, arrivals(level), asio::detached);
    } else {
      for (int64_t i = 0; i < std::min(plan.concurrency, plan.requests); ++i)
        asio::co_spawn(io_, worker(level), asio::detached);
    }
    asio::co_spawn(io_, watch(level), asio::detached);
    io_.run();
    idle_.clear();
    LevelRun out;
    out.concurrency = static_cast<double>(plan.concurrency), out.rate = plan.rate;
    out.interrupted = level.ended < plan.requests;
    level.records.resize(static_cast<size_t>(level.sent));
    for (RequestRecord& r : level.records)
      if (r.end == 0) r.end = level.now(), r.error = "interrupted";
    out.requests = std::move(level.records);
    out.cpu_seconds = cpu_time() - cpu;
    if (counts_ && !out.interrupted) out.drafts = difference(before, server_counts()), out.drafts.seconds = level.now();
    return out;
  }

 private:
  struct Level {
    const LevelPlan& plan;
    Workload& workload;
    const LevelProgress& progress;
    std::vector<RequestRecord> records;
    int64_t sent, ended;
    Clock::time_point start;
    std::mt19937_64 random;
    double now() const { return std::chrono::duration<double>(Clock::now() - start).count(); }
  };

  asio::awaitable<void> worker(Level& level) {
    while (level.sent < level.plan.requests) {
      const int64_t index = level.sent++;
      level.records[static_cast<size_t>(index)].due = level.now();
      co_await one(level, index);
    }
  }

  asio::awaitable<void> arrivals(Level& level) {
    level.random.seed(level.plan.first_index + 1);
    std::exponential_distribution<double> pause(level.plan.rate);
    asio::steady_timer timer(io_);
    double due = 0;
    while (level.sent < level.plan.requests) {
      due += pause(level.random);
      timer.expires_at(level.start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(due)));
      co_await timer.async_wait(await);
      const int64_t index = level.sent++;
      level.records[static_cast<size_t>(index)].due = due;
      asio::co_spawn(io_, one(level, index), asio::detached);
    }
  }

  /// Ends the level on a signal.
  asio::awaitable<void> watch(Level& level) {
    asio::steady_timer timer(io_);
    while (level.ended < level.plan.requests) {
      timer.expires_after(std::chrono::milliseconds(50));
      co_await timer.async_wait(await);
      if (interrupted()) io_.stop();
    }
  }

  asio::awaitable<void> one(Level& level, int64_t index) {
    RequestRecord& r = level.records[static_cast<size_t>(index)];
    const Prompt prompt = level.workload.prompt(level.plan.first_index + static_cast<uint64_t>(index));
    const std::string body = request_body(
        {options_.model, prompt.text, prompt.max_tokens, options_.temperature, options_.chat, options_.ignore_end});
    auto request = make_request(http::verb::post, options_.chat ? "/v1/chat/completions" : "/v1/completions");
    request.set(http::field::content_type, "application/json");
    request.body() = body;
    request.prepare_payload();
    for (bool again = true; again;) {
      again = false;
      auto connection = take_connection();
      const bool reused = connection->used;
      r.sent = level.now();
      const Code error = co_await exchange(level, *connection, request, r);
      // A connection that the server closed while it was idle says nothing about the request.
      if (error && reused && r.pieces.empty()) {
        again = true;
        continue;
      }
      if (error && r.error.empty())
        r.error =
            error == beast::error::timeout ? fmt::format("nothing came for {:g} s", options_.timeout) : error.message();
      if (!error && connection->used) idle_.push_back(std::move(connection));
    }
    r.end = level.now();
    if (r.ok() && r.prompt_tokens > 0) level.workload.calibrate(prompt.text.size(), r.prompt_tokens);
    level.progress(++level.ended);
  }

  std::unique_ptr<Connection> take_connection() {
    if (idle_.empty()) return std::make_unique<Connection>(io_);
    auto c = std::move(idle_.back());
    idle_.pop_back();
    return c;
  }

  http::request<http::string_body> make_request(http::verb verb, const std::string& path) const {
    http::request<http::string_body> request{verb, address_.prefix + path, 11};
    request.set(http::field::host, address_.host + ":" + address_.port);
    request.set(http::field::user_agent, "fathom-bench");
    if (!options_.api_key.empty()) request.set(http::field::authorization, "Bearer " + options_.api_key);
    return request;
  }

  /// Sends the request and reads the answer into the record. Sets connection.used when it may serve again.
  asio::awaitable<Code> exchange(Level& level, Connection& c, http::request<http::string_body>& request,
                                 RequestRecord& r) {
    const auto patience = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options_.timeout));
    const bool fresh = !c.used;
    c.used = false;
    c.stream.expires_after(patience);
    if (fresh) {
      auto [error, endpoint] = co_await c.stream.async_connect(endpoints_, await);
      if (error) co_return error;
      c.stream.socket().set_option(tcp::no_delay(true), error);
    }
    auto [write_error, written] = co_await http::async_write(c.stream, request, await);
    if (write_error) co_return write_error;
    http::response_parser<http::buffer_body> parser;
    parser.body_limit(boost::none);
    auto [header_error, header_bytes] = co_await http::async_read_header(c.stream, c.buffer, parser, await);
    if (header_error) co_return header_error;
    const int status = parser.get().result_int();
    const bool streamed = status == 200 && parser.get()[http::field::content_type].starts_with("text/event-stream");
    AnswerStream stream(r);
    std::string whole;
    char piece[16384];
    while (!parser.is_done()) {
      parser.get().body().data = piece, parser.get().body().size = sizeof piece;
      c.stream.expires_after(patience);
      auto [error, bytes] = co_await http::async_read_some(c.stream, c.buffer, parser, await);
      if (error && error != http::error::need_buffer) co_return error;
      const std::string_view got(piece, sizeof piece - parser.get().body().size);
      if (streamed)
        stream.feed(got, level.now());
      else if (whole.size() < (size_t{16} << 20))
        whole += got;
    }
    if (streamed)
      stream.finish(level.now());
    else if (status == 200)
      read_answer(whole, level.now(), r);
    else
      r.error = error_text(status, whole);
    c.used = parser.get().keep_alive();
    co_return Code{};
  }

  /// What the server counts; nothing where it has no such page, or does not answer.
  DraftCounts server_counts() {
    DraftCounts out;
    if (!counts_) return out;
    io_.restart();
    asio::co_spawn(io_, read_metrics(out), asio::detached);
    io_.run();
    return out;
  }

  asio::awaitable<void> read_metrics(DraftCounts& out) {
    counts_ = false;  // until it has answered
    Connection c(io_);
    c.stream.expires_after(std::chrono::seconds(2));
    auto [connect_error, endpoint] = co_await c.stream.async_connect(endpoints_, await);
    if (connect_error) co_return;
    auto request = make_request(http::verb::get, "");
    request.target("/metrics");
    auto [write_error, written] = co_await http::async_write(c.stream, request, await);
    if (write_error) co_return;
    http::response<http::string_body> response;
    auto [read_error, bytes] = co_await http::async_read(c.stream, c.buffer, response, await);
    if (read_error || response.result_int() != 200) co_return;
    out = read_counts(response.body());
    counts_ = true;
  }

  std::string ask_for_model() {
    try {
      beast::tcp_stream stream(io_);
      stream.connect(endpoints_);
      http::write(stream, make_request(http::verb::get, "/v1/models"));
      beast::flat_buffer buffer;
      http::response<http::string_body> response;
      http::read(stream, buffer, response);
      if (response.result_int() != 200)
        fail("{}: {}", printable(options_.url, 300),
             error_text(static_cast<int>(response.result_int()), response.body()));
      const std::string name = first_model(response.body());
      if (name.empty()) fail("{}: /v1/models lists no model: name one with --model", printable(options_.url, 300));
      return name;
    } catch (const boost::system::system_error& e) {
      fail("{}: {}: is a server running there?", printable(options_.url, 300), e.code().message());
    }
  }

  HttpOptions options_;
  bool counts_ = true;  // the server has metrics, as far as is known
  Address address_;
  asio::io_context io_{1};
  tcp::resolver::results_type endpoints_;
  std::deque<std::unique_ptr<Connection>> idle_;
};

}  // namespace

std::unique_ptr<Target> http_target(const HttpOptions& options) {
  return std::make_unique<HttpTarget>(options);
}

}  // namespace fathom::bench
