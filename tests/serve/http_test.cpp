// The HTTP layer alone: what a hostile or clumsy client can do to it.
#include "serve/http.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/error.h"
#include "serve/http_client.h"
#include "serve/http_text.h"

namespace fathom::serve::test {
namespace {

using namespace std::chrono_literals;

/// A server whose answers depend on the path.
class Http : public ::testing::Test {
 protected:
  void open(HttpOptions options = {}) {
    options.on_error = [this](const std::string&) { ++errors_; };
    server_ = std::make_unique<HttpServer>(options, [this](const std::shared_ptr<Exchange>& e) { answer(e); });
    thread_ = std::thread([this] { server_->run(); });
  }
  void TearDown() override {
    if (!server_) return;
    server_->stop();
    thread_.join();
    kept_.clear();
    server_.reset();
  }
  int port() const { return server_->port(); }
  HttpServer::Counts counts() {
    std::atomic<bool> done{false};
    HttpServer::Counts out;
    server_->post([&] { out = server_->counts(), done = true; });
    while (!done) std::this_thread::yield();
    return out;
  }

  void answer(const std::shared_ptr<Exchange>& e) {
    ++handled_;
    const std::string& path = e->request().path;
    if (path == "/throw") throw std::runtime_error("a bug");
    if (path == "/keep") {
      e->on_close([this](bool complete) { complete ? ++completed_ : ++gone_; });
      kept_.push_back(e);
      return;
    }
    if (path == "/stream") {
      e->on_close([this](bool complete) { complete ? ++completed_ : ++gone_; });
      e->begin(200, "text/event-stream");
      e->write("one ");
      e->write("");
      e->write("two");
      return e->end();
    }
    if (path == "/big" || path == "/endless") {
      e->on_close([this](bool complete) { complete ? ++completed_ : ++gone_; });
      e->on_backlog([this](bool full) { full ? ++full_ : ++drained_; });
      e->begin(200, "text/plain");
      const std::string piece(32 << 10, 'x');
      for (int i = 0; i < 600 && e->open(); ++i) e->write(piece);  // 19 MiB: more than loopback buffers hold
      if (path == "/big") e->end();
      return;
    }
    e->reply(200, "text/plain", e->request().method + " " + path + " " + e->request().query + " " + e->request().body);
  }

  std::unique_ptr<HttpServer> server_;
  std::thread thread_;
  std::vector<std::shared_ptr<Exchange>> kept_;
  std::atomic<int> handled_{0}, errors_{0}, completed_{0}, gone_{0}, full_{0}, drained_{0};
};

void wait_for(const std::atomic<int>& value, int wanted) {
  for (int i = 0; i < 2000 && value < wanted; ++i) std::this_thread::sleep_for(5ms);
  EXPECT_GE(value, wanted);
}

TEST_F(Http, AnswersOneRequestAfterTheOtherOnAConnection) {
  open();
  Client client(port());
  for (int i = 0; i < 3; ++i) {
    client.send(post_text("/echo?a=b", "body " + std::to_string(i)));
    const Answer a = client.read();
    EXPECT_EQ(a.status, 200);
    EXPECT_EQ(a.body, "POST /echo a=b body " + std::to_string(i));
  }
  EXPECT_EQ(counts().accepted, 1);
}

TEST_F(Http, PipelinedRequestsAreAnsweredInOrderAndOnce) {
  open();
  Client client(port());
  std::string all;
  for (int i = 0; i < 50; ++i) all += post_text("/p" + std::to_string(i), std::to_string(i));
  client.send(all);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(client.read().body, "POST /p" + std::to_string(i) + "  " + std::to_string(i));
  EXPECT_EQ(handled_, 50);
}

TEST_F(Http, ARequestMayArriveByteByByteAndInChunks) {
  open();
  Client client(port());
  for (const char c : post_text("/slow", "abc")) client.send(std::string_view(&c, 1));
  EXPECT_EQ(client.read().body, "POST /slow  abc");
  client.send(
      "POST /chunks HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n");
  EXPECT_EQ(client.read().body, "POST /chunks  abcde");
}

TEST_F(Http, AStreamHasItsPiecesInOrderAndEnds) {
  open();
  Client client(port());
  client.send("GET /stream HTTP/1.1\r\nhost: x\r\n\r\n");
  const Answer a = client.read();
  EXPECT_EQ(a.body, "one two");
  EXPECT_TRUE(a.complete);
  EXPECT_EQ(a.header("transfer-encoding"), "chunked");
  client.send("GET /after HTTP/1.1\r\nhost: x\r\n\r\n");
  EXPECT_EQ(client.read().status, 200);
}

TEST_F(Http, AnHttp10ClientGetsNoChunksAndAClosedConnection) {
  open();
  Client client(port());
  client.send("GET /stream HTTP/1.0\r\n\r\n");
  const Answer a = client.read();
  EXPECT_EQ(a.header("transfer-encoding"), "");
  EXPECT_EQ(a.body, "one two");
  EXPECT_TRUE(client.closed());
}

TEST_F(Http, WhatIsNoHttpIsRefusedWithOneAnswerAndTheConnectionEnds) {
  open();
  const std::pair<const char*, int> cases[] = {
      {"nonsense\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\n\r\n", 400},  // no Host
      {"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400},
      {"GET nowhere HTTP/1.1\r\nhost: a\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nhost: a\r\nbad header\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", 400},
      {"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip\r\n\r\n", 501},
      {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a TLS hello\r\n\r\n", 400},
      {"GET / HTTP/2.0\r\nhost: a\r\n\r\n", 400},
  };
  for (const auto& [text, status] : cases) {
    Client client(port());
    client.send(text);
    EXPECT_EQ(client.read().status, status) << text;
    EXPECT_TRUE(client.closed()) << text;
  }
  EXPECT_EQ(handled_, 0);
  EXPECT_EQ(get(port(), "/still").status, 200);
}

TEST_F(Http, TooLargeHeadersAndBodiesAreRefusedBeforeTheyAreRead) {
  HttpOptions options;
  options.max_body_bytes = 1000, options.max_header_bytes = 2000;
  open(options);
  Client announced(port());
  announced.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1001\r\n\r\n");
  EXPECT_EQ(announced.read().status, 413);
  Client chunked(port());
  chunked.send("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n");
  for (int i = 0; i < 20; ++i) chunked.send("64\r\n" + std::string(100, 'x') + "\r\n");
  EXPECT_EQ(chunked.read().status, 413);
  Client header(port());
  header.send("GET / HTTP/1.1\r\nhost: a\r\nx: " + std::string(3000, 'x'));
  EXPECT_EQ(header.read().status, 431);
  EXPECT_EQ(post(port(), "/", std::string(1000, 'x')).status, 200);
}

TEST_F(Http, BodiesOfAllRequestsTogetherAreBounded) {
  HttpOptions options;
  options.max_body_bytes = 1 << 20, options.max_bodies_bytes = 1 << 20;
  open(options);
  Client first(port()), second(port());
  first.send("POST /a HTTP/1.1\r\nhost: a\r\ncontent-length: 900000\r\n\r\n" + std::string(800000, 'x'));
  std::this_thread::sleep_for(100ms);
  second.send("POST /b HTTP/1.1\r\nhost: a\r\ncontent-length: 900000\r\n\r\n" + std::string(800000, 'x'));
  const Answer refused = second.read();
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.header("retry-after"), "1");
  first.send(std::string(100000, 'x'));
  EXPECT_EQ(first.read().status, 200);
}

TEST_F(Http, SlowRequestsAreEndedAndHoldNobody) {
  HttpOptions options;
  options.header_timeout = 300ms, options.body_timeout = 300ms, options.idle_timeout = 300ms;
  open(options);
  Client idle(port()), header(port()), body(port());
  header.send("GET / HTTP/1.1\r\nhost");
  body.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\nabc");
  EXPECT_EQ(get(port(), "/meanwhile").status, 200);
  EXPECT_EQ(header.read().status, 408);
  EXPECT_EQ(body.read().status, 408);
  EXPECT_TRUE(idle.closed());
  EXPECT_EQ(counts().timed_out, 2);
}

TEST_F(Http, ItsOwnErrorsAreWrittenInTheFormOfThePathThatWasAskedFor) {
  HttpOptions options;
  options.header_timeout = 300ms, options.body_timeout = 300ms;
  options.max_body_bytes = 1000, options.max_header_bytes = 2000;
  options.error_body = [](int status, std::string_view, std::string_view path) {
    return fmt::format("{} {}", status, path);
  };
  open(options);
  const std::pair<std::string, std::string> cases[] = {
      {"POST /v1/messages?a=b HTTP/1.1\r\nhost", "408 /v1/messages"},
      {"POST /v1/messages HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\nabc", "408 /v1/messages"},
      {"POST /v1/messages HTTP/1.1\r\nhost: a\r\ncontent-length: 1001\r\n\r\n", "413 /v1/messages"},
      {"POST /v1/messages HTTP/1.1\r\nx: " + std::string(3000, 'x'), "431 /v1/messages"},
      {"POST /v1/messages HTTP/1.1\r\n\r\n", "400 /v1/messages"},
      {"PO", "408 "},
      {"\x01\x02 nonsense\r\n\r\n", "400 "},
      {"GET nonsense HTTP/1.1\r\nhost: a\r\n\r\n", "400 "},
  };
  for (const auto& [request, body] : cases) {
    Client client(port());
    client.send(request);
    const Answer a = client.read();
    EXPECT_EQ(a.body, body) << request.substr(0, 60);
    EXPECT_EQ(a.header("content-type"), "application/json");
  }
}

TEST_F(Http, ASlowReaderIsToldAboutAndHoldsNobody) {
  open();
  Client slow(port(), 4096);
  slow.send("GET /big HTTP/1.1\r\nhost: a\r\n\r\n");
  wait_for(full_, 1);
  EXPECT_EQ(get(port(), "/meanwhile").status, 200);
  EXPECT_EQ(completed_, 0);
  const Answer a = slow.read();
  EXPECT_EQ(a.body.size(), size_t{600} * (32 << 10));
  EXPECT_TRUE(a.complete);
  wait_for(completed_, 1);
  EXPECT_EQ(drained_, 1);
}

TEST_F(Http, AReaderThatTakesNothingIsCutOff) {
  HttpOptions options;
  options.write_timeout = 300ms;
  open(options);
  Client stuck(port(), 4096);
  stuck.send("GET /endless HTTP/1.1\r\nhost: a\r\n\r\n");
  wait_for(gone_, 1);
  EXPECT_EQ(counts().exchanges, 0);
  EXPECT_EQ(counts().timed_out, 1);
}

TEST_F(Http, AClientThatLeavesIsNoticedWhileItsAnswerIsMade) {
  open();
  {
    Client client(port());
    client.send("GET /keep HTTP/1.1\r\nhost: a\r\n\r\n");
    wait_for(handled_, 1);
  }
  wait_for(gone_, 1);
  // What the handler does afterwards falls on deaf ears, and does no harm.
  server_->post([this] {
    EXPECT_FALSE(kept_.front()->open());
    kept_.front()->reply(200, "text/plain", "late");
    kept_.front()->begin(200, "text/plain");
    kept_.front()->write("late");
    kept_.front()->end();
    kept_.front()->abort();
  });
  EXPECT_EQ(counts().connections, 0);
}

TEST_F(Http, AHandlerThatThrowsGives500) {
  open();
  EXPECT_EQ(get(port(), "/throw").status, 500);
  EXPECT_EQ(errors_, 1);
  EXPECT_EQ(get(port(), "/fine").status, 200);
}

TEST_F(Http, MoreConnectionsThanAllowedAreRefusedAtOnce) {
  HttpOptions options;
  options.max_connections = 2;
  open(options);
  Client one(port()), two(port());
  one.send("GET /keep HTTP/1.1\r\nhost: a\r\n\r\n"), two.send("GET /keep HTTP/1.1\r\nhost: a\r\n\r\n");
  wait_for(handled_, 2);
  Client three(port());
  EXPECT_EQ(three.read().status, 503);
  one.close();
  wait_for(gone_, 1);
  EXPECT_EQ(get(port(), "/free").status, 200);
}

TEST_F(Http, ClosingWhenAnsweredLetsRunningAnswersEnd) {
  open();
  Client busy(port()), idle(port());
  idle.send("GET /x HTTP/1.1\r\nhost: a\r\n\r\n");
  EXPECT_EQ(idle.read().status, 200);
  busy.send("GET /keep HTTP/1.1\r\nhost: a\r\n\r\n");
  wait_for(handled_, 2);
  const int old_port = port();
  server_->post([this] { server_->close_when_answered(); });
  EXPECT_TRUE(idle.closed());
  EXPECT_THROW(Client again(old_port), std::runtime_error);
  server_->post([this] { kept_.front()->reply(200, "text/plain", "done"); });
  const Answer a = busy.read();
  EXPECT_EQ(a.body, "done");
  EXPECT_EQ(a.header("connection"), "close");
  EXPECT_TRUE(busy.closed());
}

TEST_F(Http, AnExpectantClientIsToldToGoOn) {
  open();
  Client client(port());
  client.send("POST /e HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\nexpect: 100-continue\r\n\r\n");
  EXPECT_TRUE(client.read_until("100 Continue\r\n\r\n"));
  client.send("abc");
  EXPECT_EQ(client.read().body, "POST /e  abc");
}

TEST_F(Http, HeadGetsTheHeaderWithoutTheBody) {
  open();
  Client client(port());
  client.send("HEAD /abc HTTP/1.1\r\nhost: a\r\n\r\nGET /next HTTP/1.1\r\nhost: a\r\n\r\n");
  EXPECT_TRUE(client.read_until("content-length: 11\r\n"));
  EXPECT_TRUE(client.read_until("GET /next"));
}

TEST(HttpServer, SaysWhichPortIsTaken) {
  HttpServer first({}, [](const std::shared_ptr<Exchange>&) {});
  HttpOptions same;
  same.port = first.port();
  try {
    HttpServer second(same, [](const std::shared_ptr<Exchange>&) {});
    FAIL() << "two servers on one port";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find(std::to_string(first.port())), std::string::npos) << e.what();
  }
  HttpOptions nowhere;
  nowhere.host = "192.0.2.1";  // nobody's
  EXPECT_THROW(HttpServer(nowhere, [](const std::shared_ptr<Exchange>&) {}), Error);
}

TEST(HttpText, HeadersCannotSmuggleLines) {
  EXPECT_EQ(header_line("a", "b\r\nc: d\n"), "a: b  c: d \r\n");
}

TEST(HttpText, TargetsAreCutIntoPathAndQuery) {
  std::string path, query;
  EXPECT_TRUE(split_target("/a/b?c=d&e#f", path, query));
  EXPECT_EQ(path + "|" + query, "/a/b|c=d&e");
  EXPECT_TRUE(split_target("http://host:1/x?y", path, query));
  EXPECT_EQ(path + "|" + query, "/x|y");
  EXPECT_TRUE(split_target("http://host", path, query));
  EXPECT_EQ(path, "/");
  EXPECT_FALSE(split_target("nothing", path, query));
  EXPECT_FALSE(split_target("/a b", path, query));
}

}  // namespace
}  // namespace fathom::serve::test
