#include "cli/output.h"

#include <charconv>
#include <cstdio>

#include "base/error.h"
#include "base/file.h"
#include "cli/parser.h"

namespace fathom::cli {

void print(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) fail("cannot write to the standard output");
}

void write_file(const std::string& path, std::string_view text) {
  OutputFile file(path);
  file.write(text);
  file.commit();
}

std::string read_key(const std::string& file) {
  std::string key = read_file(file, 65536);
  while (!key.empty() && (key.back() == '\n' || key.back() == '\r' || key.back() == ' ')) key.pop_back();
  if (key.empty() || key.find_first_of("\r\n") != key.npos)
    fail("{}: expected one line, the API key", printable(file, 400));
  return key;
}

std::vector<int64_t> number_list(const char* option, const std::string& text, int64_t most, bool units) {
  std::vector<int64_t> out;
  const char *at = text.data(), *end = text.data() + text.size();
  while (true) {
    int64_t n = 0;
    auto [stop, error] = std::from_chars(at, end, n);
    const bool unit = units && error == std::errc() && n <= most;
    if (unit && stop < end && (*stop == 'k' || *stop == 'K')) n *= 1 << 10, ++stop;
    if (unit && stop < end && (*stop == 'm' || *stop == 'M')) n *= 1 << 20, ++stop;
    if (error != std::errc() || (stop < end && *stop != ',') || n < 1 || n > most)
      throw UsageError(
          fmt::format("{} {}: expected numbers from 1 to {} with commas between them", option, printable(text), most));
    out.push_back(n);
    if (stop == end) return out;
    at = stop + 1;
  }
}

}  // namespace fathom::cli
