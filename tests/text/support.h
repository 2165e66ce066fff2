// What the tests of text/ share: where their data lies and how to read it.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "text/json.h"
#include "text/tokenizer.h"

namespace fathom::text::testing {

inline const std::filesystem::path kRoot = FATHOM_SOURCE_DIR;
/// Recorded cases of the chat protocol; they are not part of the repository.
inline const std::filesystem::path kProtocolData = kRoot / "../shared/data/deepseek-v4-flash";
inline const std::filesystem::path kV4Tokenizer = kRoot / "build/v4-tokenizer/tokenizer.json";

inline JsonValue parse(std::string_view text) {
  JsonReading r = read_json(text);
  if (!r.value) throw Error("bad test data: " + r.error);
  return std::move(*r.value);
}

/// One value a line.
inline std::vector<JsonValue> read_lines(const std::filesystem::path& path) {
  const std::string text = read_file(path);
  std::vector<JsonValue> out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    if (end > at) out.push_back(parse(std::string_view(text).substr(at, end - at)));
    at = end + 1;
  }
  return out;
}

inline std::vector<int32_t> int_list(const JsonValue& v) {
  std::vector<int32_t> out;
  for (const JsonValue& i : v.items) out.push_back(std::stoi(i.text));
  return out;
}

inline const Tokenizer& fairy_tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::load(kRoot / "models/fairy/tokenizer.json");
  return tokenizer;
}

}  // namespace fathom::text::testing
