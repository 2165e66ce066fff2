#include "serve/http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>

namespace fathom::serve::test {

std::string Answer::header(std::string_view name) const {
  for (const auto& [key, value] : headers)
    if (key == name) return value;
  return "";
}

Client::Client(int port, int receive_buffer) {
  socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (receive_buffer > 0) ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    throw std::runtime_error("cannot connect to the test server");
}

Client::~Client() {
  close();
}

void Client::close() {
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
}

void Client::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return;  // the server has closed: its answer may still be there
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

bool Client::fill(std::chrono::seconds limit) {
  pollfd wait{socket_, POLLIN, 0};
  if (::poll(&wait, 1, static_cast<int>(limit.count() * 1000)) <= 0) return false;
  char part[16384];
  const ssize_t n = ::recv(socket_, part, sizeof part, 0);
  if (n <= 0) return false;
  buffer_.append(part, static_cast<size_t>(n));
  return true;
}

bool Client::line(std::string& out, std::chrono::seconds limit) {
  size_t end;
  while ((end = buffer_.find("\r\n")) == std::string::npos)
    if (!fill(limit)) return false;
  out = buffer_.substr(0, end);
  buffer_.erase(0, end + 2);
  return true;
}

bool Client::bytes(size_t n, std::string& out, std::chrono::seconds limit) {
  while (buffer_.size() < n)
    if (!fill(limit)) {
      out += std::exchange(buffer_, "");
      return false;
    }
  out += buffer_.substr(0, n);
  buffer_.erase(0, n);
  return true;
}

Answer Client::read(std::chrono::seconds limit) {
  Answer a;
  std::string text;
  if (!line(text, limit) || text.size() < 12) return a;
  const int status = std::stoi(text.substr(9, 3));
  while (line(text, limit) && !text.empty()) {
    const size_t colon = text.find(": ");
    std::string name = text.substr(0, colon);
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    a.headers.emplace_back(name, text.substr(std::min(text.size(), colon + 2)));
  }
  a.status = status;
  if (status == 100) return read(limit);
  if (a.header("transfer-encoding") == "chunked") {
    while (line(text, limit)) {
      const size_t size = std::stoul(text, nullptr, 16);
      if (!bytes(size, a.body, limit)) return a;
      std::string end;
      if (!line(end, limit)) return a;
      if (size == 0) {
        a.complete = true;
        return a;
      }
    }
  } else if (const std::string length = a.header("content-length"); !length.empty()) {
    a.complete = bytes(std::stoul(length), a.body, limit);
  } else if (status != 204) {
    while (fill(limit)) {
    }
    a.body = std::exchange(buffer_, "");
    a.complete = true;
  }
  return a;
}

bool Client::read_until(std::string_view text, std::chrono::seconds limit) {
  while (buffer_.find(text) == std::string::npos)
    if (!fill(limit)) return false;
  return true;
}

bool Client::closed(std::chrono::seconds limit) {
  if (!buffer_.empty()) return false;
  pollfd wait{socket_, POLLIN, 0};
  if (::poll(&wait, 1, static_cast<int>(limit.count() * 1000)) <= 0) return false;
  char one;
  return ::recv(socket_, &one, 1, MSG_PEEK) <= 0;
}

std::string post_text(const std::string& path, const std::string& body, const std::string& headers) {
  return "POST " + path + " HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: " +
         std::to_string(body.size()) + "\r\n" + headers + "\r\n" + body;
}

Answer get(int port, const std::string& path, const std::string& headers) {
  Client client(port);
  client.send("GET " + path + " HTTP/1.1\r\nhost: localhost\r\n" + headers + "\r\n");
  return client.read();
}

Answer post(int port, const std::string& path, const std::string& body, const std::string& headers) {
  Client client(port);
  client.send(post_text(path, body, headers));
  return client.read();
}

std::vector<std::string> events_of(const std::string& body) {
  std::vector<std::string> out;
  size_t at = 0;
  while (at < body.size()) {
    const size_t end = std::min(body.find("\n\n", at), body.size());
    std::string event = body.substr(at, end - at);
    if (event.starts_with("event: ")) event.erase(0, std::min(event.find('\n'), event.size() - 1) + 1);
    if (event.starts_with("data: ")) out.push_back(event.substr(6));
    at = end + 2;
  }
  return out;
}

}  // namespace fathom::serve::test
