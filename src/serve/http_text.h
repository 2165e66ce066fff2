// The text of HTTP/1.1 answers: status line, headers, chunks. No sockets here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fathom::serve {

/// The reason phrase of a status: "Not Found".
std::string_view reason_of(int status);

/// One header line. Control characters in name and value become spaces, so that nothing can be smuggled in.
std::string header_line(std::string_view name, std::string_view value);

struct ResponseHead {
  int status = 200;
  int minor_version = 1;  // of the request: HTTP/1.0 knows no chunks
  bool keep_alive = true;
  bool chunked = false;
  int64_t content_length = -1;  // -1: not stated
  std::string_view content_type;
  std::string_view headers;  // finished lines
};
std::string head_text(const ResponseHead& head);

/// "1a\r\n": what stands before a chunk of `size` bytes; "\r\n" stands behind it.
std::string_view chunk_head(size_t size, char (&buffer)[24]);
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";

/// The target of a request line, cut into path and query. Takes the absolute form too ("http://host/path"). False when
/// it is neither, or holds bytes that no target may hold.
bool split_target(std::string_view target, std::string& path, std::string& query);

}  // namespace fathom::serve
