#include "stream_client.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <numeric>
#include <string_view>
#include <thread>
#include <vector>

namespace fathom::serve::bench {
namespace {

using Time = std::chrono::steady_clock;

/// One stream as the client sees it.
struct Stream {
  int socket = -1;
  std::string rest, text;  // not understood yet; content so far
  Time::time_point last{};
  bool done = false;
};

int connect_to(int port) {
  const int s = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (s < 0 || ::connect(s, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    std::perror("connect");
    ::_exit(3);
  }
  return s;
}

/// Takes the contents out of what has arrived; returns how many there were.
int take_events(Stream& s) {
  int found = 0;
  size_t at = 0, end;
  while ((end = s.rest.find("\n\n", at)) != std::string::npos) {
    const std::string_view event = std::string_view(s.rest).substr(at, end - at);
    constexpr std::string_view kContent = "\"delta\":{\"content\":\"";
    if (const size_t begin = event.find(kContent); begin != std::string_view::npos) {
      const size_t from = begin + kContent.size();
      s.text += event.substr(from, event.find('"', from) - from);
      ++found;
    }
    if (event.find("data: [DONE]") != std::string_view::npos) s.done = true;
    at = end + 2;
  }
  s.rest.erase(0, at);
  return found;
}

/// Connections that behave badly and stay open as long as this process lives.
void open_bad(int port, int count, const std::string& request) {
  for (int i = 0; i < count; ++i) {
    const int s = connect_to(port);
    const int small = 4096;
    if (i % 3 == 1) ::setsockopt(s, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    const std::string_view bytes = i % 3 == 0 ? std::string_view(request).substr(0, request.size() / 2) : request;
    if (::send(s, bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) ::_exit(4);
    if (i % 3 == 2) ::shutdown(s, SHUT_WR);
  }
}

}  // namespace

ClientResult read_streams(int port, int count, const std::string& expected, int bad) {
  const std::string body = R"({"messages":[{"role":"user","content":"go"}],"stream":true})";
  const std::string request =
      "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: " + std::to_string(body.size()) +
      "\r\n\r\n" + body;
  open_bad(port, bad, request);
  const int poll = ::epoll_create1(EPOLL_CLOEXEC);
  std::vector<Stream> streams(static_cast<size_t>(count));
  for (size_t i = 0; i < streams.size(); ++i) {
    // Some servers let five connections wait, and the sixth loses its first packet.
    if (i % 4 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    streams[i].socket = connect_to(port);
    epoll_event e{};
    e.events = EPOLLIN, e.data.u64 = i;
    ::epoll_ctl(poll, EPOLL_CTL_ADD, streams[i].socket, &e);
    if (::send(streams[i].socket, request.data(), request.size(), MSG_NOSIGNAL) < 0) ::_exit(4);
  }
  ClientResult result;
  std::vector<int64_t> gaps(60000, 0);  // in tenths of a millisecond
  int started = 0, open = count;
  std::array<epoll_event, 256> ready;
  std::array<char, 65536> buffer;
  while (open > 0) {
    const int n = ::epoll_wait(poll, ready.data(), static_cast<int>(ready.size()), 20000);
    if (n <= 0) break;
    for (int k = 0; k < n; ++k) {
      Stream& s = streams[ready[static_cast<size_t>(k)].data.u64];
      const ssize_t got = ::recv(s.socket, buffer.data(), buffer.size(), 0);
      if (got > 0) s.rest.append(buffer.data(), static_cast<size_t>(got));
      const auto now = Time::now();
      const int tokens = got > 0 ? take_events(s) : 0;
      result.tokens += tokens;
      if (tokens > 0) {
        if (s.last == Time::time_point{}) {
          ++started;
        } else if (started == count) {
          const auto gap = std::chrono::duration_cast<std::chrono::microseconds>(now - s.last).count() / 100;
          ++gaps[static_cast<size_t>(std::min<int64_t>(gap, 59999))];
          gaps[0] += tokens - 1;
        }
        s.last = now;
      }
      if (got <= 0 || s.done) ::close(s.socket), --open;
    }
  }
  for (const Stream& s : streams) result.wrong += !s.done || s.text != expected;
  const int64_t all = std::accumulate(gaps.begin(), gaps.end(), int64_t{0});
  int64_t sum = 0;
  for (size_t i = 0; i < gaps.size(); ++i) {
    if (gaps[i] == 0) continue;
    const double ms = static_cast<double>(i) / 10;
    if (sum * 2 < all) result.p50 = ms;
    if (sum * 100 < all * 99) result.p99 = ms;
    result.most = ms, sum += gaps[i];
  }
  return result;
}

StreamClient::StreamClient(int count, const std::string& expected, int bad) {
  if (::pipe2(port_pipe_, O_CLOEXEC) != 0 || ::pipe2(result_pipe_, O_CLOEXEC) != 0) return;
  child_ = ::fork();
  if (child_ != 0) return;
  int port = 0;
  if (::read(port_pipe_[0], &port, sizeof port) != sizeof port) ::_exit(2);
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  const ClientResult r = read_streams(port, count, expected, bad);
  ::_exit(::write(result_pipe_[1], &r, sizeof r) == sizeof r ? 0 : 2);
}

bool StreamClient::run(int port, ClientResult& result) {
  if (child_ < 0 || ::write(port_pipe_[1], &port, sizeof port) != sizeof port) return false;
  ::close(result_pipe_[1]), result_pipe_[1] = -1;
  return ::read(result_pipe_[0], &result, sizeof result) == sizeof result;
}

StreamClient::~StreamClient() {
  for (const int descriptor : {port_pipe_[0], port_pipe_[1], result_pipe_[0], result_pipe_[1]})
    if (descriptor >= 0) ::close(descriptor);
  int status = 0;
  if (child_ > 0) ::waitpid(child_, &status, 0);
}

}  // namespace fathom::serve::bench
