// The contents of tokenizer.json, checked and in the form the tokenizer needs. Internal to text/.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/bpe.h"

namespace fathom::text {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;
  bool normalized = false;  // searched only in what the others leave over
};

struct TokenizerFile {
  std::vector<std::string> tokens;  // by id: bytes; empty where the id is unused
  std::array<int32_t, 256> byte_ids{};
  std::vector<Bpe::Merge> merges;
  std::vector<AddedToken> added;
  std::vector<std::string> patterns;  // of the isolated splits, in order
  bool whole_pieces_first = false;    // "ignore_merges": a piece that is a token needs no merges
};

/// Throws Error: "<name>: <what>".
TokenizerFile read_tokenizer_file(std::string_view json, std::string_view name);

}  // namespace fathom::text
