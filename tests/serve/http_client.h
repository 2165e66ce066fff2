// A client that can misbehave: raw bytes over a socket, answers taken apart.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fathom::serve::test {

struct Answer {
  int status = 0;                                            // 0: the connection ended before an answer was complete
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string body;                                          // chunks put together
  bool complete = false;                                     // the last chunk or all of content-length came

  std::string header(std::string_view name) const;
};

class Client {
 public:
  /// Connects to the loopback port. A small receive buffer makes a slow reader.
  explicit Client(int port, int receive_buffer = 0);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void send(std::string_view bytes);
  /// The next answer; waits at most `limit` for each piece.
  Answer read(std::chrono::seconds limit = std::chrono::seconds(120));
  /// More bytes of whatever kind until `text` was seen; false when the connection ended or nothing came in time.
  bool read_until(std::string_view text, std::chrono::seconds limit = std::chrono::seconds(120));
  /// True when the server has closed the connection and nothing was left to read.
  bool closed(std::chrono::seconds limit = std::chrono::seconds(120));
  void close();

 private:
  bool fill(std::chrono::seconds limit);
  bool line(std::string& out, std::chrono::seconds limit);
  bool bytes(size_t n, std::string& out, std::chrono::seconds limit);

  int socket_ = -1;
  std::string buffer_;
};

/// One request on a connection of its own.
Answer get(int port, const std::string& path, const std::string& headers = "");
Answer post(int port, const std::string& path, const std::string& body, const std::string& headers = "");
std::string post_text(const std::string& path, const std::string& body, const std::string& headers = "");

/// The data lines of server-sent events.
std::vector<std::string> events_of(const std::string& body);

}  // namespace fathom::serve::test
