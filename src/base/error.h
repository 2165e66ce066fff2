// The one exception type for bad input: files, flags, requests, checkpoints.
//
// Everything a user can cause ends here. The text is one line that says what is wrong, where (file, offset,
// tensor, field) and what to do about it; the command line prints it and exits 1, the server answers 4xx with it.
// Broken invariants inside fathom are not Errors: they are std::logic_error and mean a bug.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>

namespace fathom {

class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& what) : std::runtime_error(what) {}
};

/// Throws Error with a formatted line: fail("{}: header length {} exceeds the file", path, n).
template <typename... Args>
[[noreturn]] void fail(fmt::format_string<Args...> text, Args&&... args) {
  throw Error(fmt::format(text, std::forward<Args>(args)...));
}

/// Text that came from outside, made safe for one line of a terminal or log: control characters and bytes that
/// are not UTF-8 become \xNN, and everything past `limit` bytes is cut and marked with "...".
std::string printable(std::string_view text, size_t limit = 120);

}  // namespace fathom
