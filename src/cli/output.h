// What the commands share: text to the standard output and to files, and lists of numbers on the command line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fathom::cli {

/// Text on the standard output. Throws Error when it cannot be written.
void print(std::string_view text);

/// A whole file, put in place when it is complete (OutputFile).
void write_file(const std::string& path, std::string_view text);

/// The one line of a file with an API key. Throws Error.
std::string read_key(const std::string& file);

/// "1,4,16" -> numbers from 1 to `most`. With `units` also "128k" (131,072) and "1m" (1,048,576). Throws UsageError
/// that names `option`.
std::vector<int64_t> number_list(const char* option, const std::string& text, int64_t most, bool units = false);

}  // namespace fathom::cli
