// The load generator against a small server of canned answers.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "bench/server_counts.h"
#include "bench/sweep.h"

namespace fathom::bench {
namespace {

/// Answers every request on every connection with what `answer` writes; a thread for each connection.
class Server {
 public:
  using Answer = std::function<bool(int socket, const std::string& request)>;  // false: close the connection

  explicit Server(Answer answer) : answer_(std::move(answer)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    if (::bind(listener_, reinterpret_cast<sockaddr*>(&at), size) != 0 || ::listen(listener_, 64) != 0 ||
        ::getsockname(listener_, reinterpret_cast<sockaddr*>(&at), &size) != 0)
      throw std::runtime_error("listen");
    port_ = ntohs(at.sin_port);
    threads_.emplace_back([this] { accept_all(); });
  }
  ~Server() {
    ::shutdown(listener_, SHUT_RDWR);
    ::close(listener_);
    threads_.front().join();
    {
      const std::lock_guard lock(mutex_);
      for (const int s : sockets_) ::shutdown(s, SHUT_RDWR);
    }
    for (size_t i = 1; i < threads_.size(); ++i) threads_[i].join();
    for (const int s : sockets_) ::close(s);
  }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  int connections() const { return connections_; }

 private:
  void accept_all() {
    while (true) {
      const int s = ::accept(listener_, nullptr, nullptr);
      if (s < 0) return;
      ++connections_;
      const std::lock_guard lock(mutex_);
      sockets_.push_back(s);
      threads_.emplace_back([this, s] { serve(s); });
    }
  }

  void serve(int s) {
    std::string data;
    char piece[4096];
    while (true) {
      const size_t head = data.find("\r\n\r\n");
      size_t body = 0;
      if (head != data.npos) {
        const size_t at = data.find("Content-Length: ");
        if (at < head) body = std::stoul(data.substr(at + 16));
        if (data.size() >= head + 4 + body) {
          const std::string request = data.substr(0, head + 4 + body);
          data.erase(0, head + 4 + body);
          if (!answer_(s, request)) {
            ::shutdown(s, SHUT_RDWR);
            return;
          }
          continue;
        }
      }
      const ssize_t n = ::recv(s, piece, sizeof piece, 0);
      if (n <= 0) return;
      data.append(piece, static_cast<size_t>(n));
    }
  }

  Answer answer_;
  int listener_ = -1, port_ = 0;
  std::atomic<int> connections_{0};
  std::mutex mutex_;
  std::vector<int> sockets_;
  std::vector<std::thread> threads_;
};

void put(int s, const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const ssize_t n = ::send(s, text.data() + at, text.size() - at, MSG_NOSIGNAL);
    if (n <= 0) return;
    at += static_cast<size_t>(n);
  }
}

void chunk(int s, const std::string& text) {
  char size[32];
  std::snprintf(size, sizeof size, "%zx\r\n", text.size());
  put(s, size + text + "\r\n");
}

bool list_models(int s, const std::string& request) {
  if (request.find("GET /metrics") != std::string::npos) {
    put(s, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
    return true;
  }
  if (!request.starts_with("GET /v1/models ")) return false;
  const std::string body = R"({"data":[{"id":"canned"}]})";
  put(s, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
             "\r\n\r\n" + body);
  return true;
}

/// Five tokens of output, `pause` between them.
bool stream_answer(int s, std::chrono::milliseconds pause) {
  put(s, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 5; ++i) {
    chunk(s, "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n");
    std::this_thread::sleep_for(pause);
  }
  chunk(s, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":20,\"completion_tokens\":5}}\n\ndata: [DONE]\n\n");
  put(s, "0\r\n\r\n");
  return true;
}

LevelRun run(Target& target, int64_t concurrency, int64_t requests, double rate = 0) {
  Workload workload({});
  int64_t told = 0;
  LevelRun r = target.run({concurrency, rate, requests, 0}, workload, [&](int64_t n) { told = n; });
  EXPECT_EQ(told, requests);
  return r;
}

TEST(HttpTarget, KeepsSoManyRequestsOpenOnAsManyConnections) {
  std::atomic<int> open = 0, most = 0;
  Server server([&](int s, const std::string& request) {
    if (list_models(s, request)) return true;
    EXPECT_NE(request.find("POST /v1/chat/completions"), std::string::npos);
    EXPECT_NE(request.find("\"model\":\"canned\""), std::string::npos);
    int now = ++open, seen = most;
    while (now > seen && !most.compare_exchange_weak(seen, now)) {
    }
    const bool ok = stream_answer(s, std::chrono::milliseconds(2));
    --open;
    return ok;
  });
  const auto target = http_target({.url = server.url() + "/v1/"});
  EXPECT_NE(target->describe().find("canned"), std::string::npos);
  const LevelRun r = run(*target, 4, 40);
  ASSERT_EQ(r.requests.size(), 40u);
  for (const RequestRecord& q : r.requests) {
    EXPECT_EQ(q.error, "");
    EXPECT_EQ(q.pieces.size(), 5u);
    EXPECT_EQ(q.output_tokens, 5);
    EXPECT_LE(q.sent, q.first());
    EXPECT_LE(q.last(), q.end);
  }
  EXPECT_EQ(most, 4);
  EXPECT_EQ(server.connections(), 6) << "connections are kept: one asked for the model, one for metrics, four worked";
  EXPECT_EQ(longest_stretch(r.requests).peak, 4);
}

TEST(HttpTarget, CountsStepsAndDraftsFromTheServersMetrics) {
  const DraftCounts before = read_counts("fathom_engine_steps_total 5\nvllm:generation_tokens_total{a=\"b\"} 7\n");
  EXPECT_EQ(before.steps, 5);
  const DraftCounts after = read_counts(
      "# TYPE fathom_engine_steps_total counter\nfathom_engine_steps_total 15\n"
      "vllm:generation_tokens_total{a=\"b\"} 27\nvllm:spec_decode_num_draft_tokens_total{a=\"b\"} 20\n"
      "vllm:spec_decode_num_accepted_tokens_total 10\n"
      "fathom_draft_tokens_per_pos_total{m=\"x\",position=\"0\"} 10\n"
      "fathom_draft_tokens_per_pos_total{m=\"x\",position=\"1\"} 10\n"
      "fathom_draft_tokens_per_pos_total{m=\"x\",position=\"9999999999\"} 10\n"
      "vllm:spec_decode_num_accepted_tokens_per_pos_total{m=\"x\",position=\"0\"} 10\nx nan\ny 1e300\nrubbish");
  const DraftCounts d = difference(before, after);
  EXPECT_EQ(d.steps, 10);
  EXPECT_EQ(d.tokens_a_step(), 2);
  EXPECT_EQ(d.offered, 20);
  EXPECT_EQ(d.accepted, 10);
  EXPECT_EQ(d.offered_at, (std::vector<int64_t>{10, 10}));
  EXPECT_EQ(d.accepted_at, (std::vector<int64_t>{10, 0}));
  EXPECT_EQ(difference(after, before).steps, 0) << "another server";
}

TEST(HttpTarget, SendsAtRandomTimesWhenGivenARate) {
  Server server([&](int s, const std::string& request) {
    return list_models(s, request) || stream_answer(s, std::chrono::milliseconds(0));
  });
  const auto target = http_target({.url = server.url()});
  const LevelRun r = run(*target, 0, 50, 500);
  ASSERT_EQ(r.requests.size(), 50u);
  for (const RequestRecord& q : r.requests) {
    EXPECT_EQ(q.error, "");
    EXPECT_GE(q.sent, q.due - 1e-3);
  }
  EXPECT_LT(r.requests.front().due, r.requests.back().due);
}

TEST(HttpTarget, FailuresAreRecordedOneByOne) {
  std::atomic<int> n = 0;
  Server server([&](int s, const std::string& request) {
    if (list_models(s, request)) return true;
    switch (n++ % 4) {
      case 0:
        put(s, "HTTP/1.1 503 Busy\r\nContent-Length: 30\r\n\r\n{\"error\":{\"message\":\"no room\"}}");
        return true;
      case 1:
        put(s, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
        chunk(s, "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n");
        return false;  // closed in the middle
      case 2:
        put(s, "garbage\r\n\r\n");
        return false;
      default:
        return stream_answer(s, std::chrono::milliseconds(0));
    }
  });
  const auto target = http_target({.url = server.url()});
  const LevelRun r = run(*target, 1, 8);
  ASSERT_EQ(r.requests.size(), 8u);
  size_t failed = 0;
  bool told = false;
  for (const RequestRecord& q : r.requests) failed += !q.error.empty(), told |= q.error.find("no room") != q.error.npos;
  EXPECT_EQ(failed, 6u);
  EXPECT_TRUE(told);
}

TEST(HttpTarget, GivesUpOnASilentServer) {
  std::atomic<bool> stop = false;
  Server server([&](int s, const std::string& request) {
    if (list_models(s, request)) return true;
    while (!stop) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return false;
  });
  const auto target = http_target({.url = server.url(), .timeout = 0.2});
  const LevelRun r = run(*target, 1, 1);
  EXPECT_NE(r.requests.at(0).error.find("nothing came for 0.2 s"), std::string::npos) << r.requests.at(0).error;
  stop = true;
}

TEST(HttpTarget, BadAddressesAreErrors) {
  for (const char* url : {"https://localhost", "ftp://x", "http://", "http://:80", "http://a b", "http://h:port",
                          "http://h:1/v1?x", "http://u@h"})
    EXPECT_THROW(http_target({.url = url}), Error) << url;
  int port = 0;
  {
    Server gone([](int, const std::string&) { return false; });
    port = std::stoi(gone.url().substr(17));
  }
  EXPECT_THROW(http_target({.url = "http://127.0.0.1:" + std::to_string(port)}), Error);
}

TEST(Sweep, MeasuresLevelsAndReportsThem) {
  Server server([&](int s, const std::string& request) {
    return list_models(s, request) || stream_answer(s, std::chrono::milliseconds(1));
  });
  const auto target = http_target({.url = server.url()});
  WorkloadOptions workload;
  workload.output = {5, 5};
  const Sweep s = run_sweep(*target, workload, {.levels = {1, 2, 3}, .rounds = 3, .least = 4, .repeats = 2});
  ASSERT_EQ(s.levels.size(), 3u);
  for (const Level& l : s.levels) {
    EXPECT_EQ(l.repeats.size(), 2u);
    EXPECT_GT(l.median().output_rate, 0);
    EXPECT_EQ(l.median().errors, 0u);
    EXPECT_NEAR(l.median().prompt_tokens, 20, 1e-9);
  }
  EXPECT_NE(text_report(s).find("TTFT"), std::string::npos);
  EXPECT_NE(markdown_report(s).find("| TTFT p50 |"), std::string::npos);
  EXPECT_NE(json_report(s).find("\"concurrency\": 2.0"), std::string::npos) << json_report(s);
}

}  // namespace
}  // namespace fathom::bench
