// Token ids to text as they arrive. A token is often only part of a character; what comes out is always whole UTF-8.
#pragma once

#include <cstdint>
#include <string>

#include "text/tokenizer.h"

namespace fathom::text {

/// What becomes of tokens marked special in tokenizer.json (end of sentence...). The output parser needs them shown.
enum class SpecialTokens { show, hide };

/// One stream. The pieces of all calls together are the tokenizer's decode() of all ids, however long the stream.
class Detokenizer {
 public:
  /// `tokenizer` must outlive this.
  explicit Detokenizer(const Tokenizer& tokenizer, SpecialTokens special = SpecialTokens::show)
      : tokenizer_(&tokenizer), special_(special) {}

  /// The text that `id` completes: may be empty while a character is unfinished. Bytes that can never become a
  /// character come out as U+FFFD. Throws Error on an id without a token; the stream is then as before.
  std::string push(int32_t id);

  /// What is still held back, as U+FFFD; afterwards a new stream may begin.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  SpecialTokens special_;
  std::string held_;  // the beginning of a character: at most three bytes
};

}  // namespace fathom::text
