// Naming what a file is, from its first bytes, and what a JSON document is, from its top-level keys.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fathom::trace {

enum class FileKind : uint8_t { json, gzip, sqlite, other };

/// What the content begins with. `refusal`, for `other`, completes the sentence "FILE: ..." with what it is and what
/// to do about it.
struct FileGuess {
  FileKind kind = FileKind::other;
  std::string refusal;
};
FileGuess guess_kind(std::span<const std::byte> head, std::string_view file_name);

/// The sentence for a JSON document without an event list.
std::string name_json_document(const std::vector<std::string>& top_keys);

}  // namespace fathom::trace
