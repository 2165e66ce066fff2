#include "serve/http_text.h"

#include <fmt/format.h>

#include <charconv>
#include <ctime>

namespace fathom::serve {

std::string_view reason_of(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 413:
      return "Payload Too Large";
    case 415:
      return "Unsupported Media Type";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    default:
      return "Status";
  }
}

std::string header_line(std::string_view name, std::string_view value) {
  std::string line;
  line.reserve(name.size() + value.size() + 4);
  const auto add = [&](std::string_view text) {
    for (const char c : text) line += static_cast<unsigned char>(c) < 0x20 || c == 0x7F ? ' ' : c;
  };
  add(name);
  line += ": ";
  add(value);
  return line + "\r\n";
}

namespace {

/// "Sun, 06 Nov 1994 08:49:37 GMT"; days and months in English whatever the locale.
std::string date_text(std::time_t now) {
  static constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                            "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  std::tm t{};
  ::gmtime_r(&now, &t);
  return fmt::format("{}, {:02} {} {} {:02}:{:02}:{:02} GMT", kDays[t.tm_wday], t.tm_mday, kMonths[t.tm_mon],
                     t.tm_year + 1900, t.tm_hour, t.tm_min, t.tm_sec);
}

}  // namespace

std::string head_text(const ResponseHead& head) {
  std::string out = fmt::format("HTTP/1.1 {} {}\r\nserver: fathom\r\ndate: {}\r\n", head.status, reason_of(head.status),
                                date_text(std::time(nullptr)));
  if (!head.content_type.empty()) out += header_line("content-type", head.content_type);
  if (head.content_length >= 0) out += fmt::format("content-length: {}\r\n", head.content_length);
  if (head.chunked) out += "transfer-encoding: chunked\r\n";
  if (!head.keep_alive)
    out += "connection: close\r\n";
  else if (head.minor_version == 0)
    out += "connection: keep-alive\r\n";
  out += head.headers;
  return out + "\r\n";
}

std::string_view chunk_head(size_t size, char (&buffer)[24]) {
  char* end = std::to_chars(buffer, buffer + 20, size, 16).ptr;
  *end++ = '\r', *end++ = '\n';
  return {buffer, static_cast<size_t>(end - buffer)};
}

bool split_target(std::string_view target, std::string& path, std::string& query) {
  for (const char c : target)
    if (static_cast<unsigned char>(c) <= 0x20 || static_cast<unsigned char>(c) >= 0x7F) return false;
  for (const std::string_view scheme : {"http://", "https://"})
    if (target.starts_with(scheme)) {
      const size_t slash = target.find('/', scheme.size());
      target = slash == std::string_view::npos ? "/" : target.substr(slash);
    }
  if (target != "*" && !target.starts_with('/')) return false;
  target = target.substr(0, target.find('#'));
  const size_t mark = target.find('?');
  path = target.substr(0, mark);
  query = mark == std::string_view::npos ? "" : target.substr(mark + 1);
  return true;
}

}  // namespace fathom::serve
