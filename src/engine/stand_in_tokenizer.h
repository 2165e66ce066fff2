// A tokenizer for models without one: each byte of a text is a token. Ids without a byte are written as numbers, so
// that whatever such a model says can be shown.
#pragma once

#include "text/tokenizer.h"

namespace fathom {

/// `vocab`: at least kStandInLeast ids. The control tokens of the chat protocol come first (begin 0, end 1), then the
/// 256 bytes, then " ~ID" for all others.
text::Tokenizer stand_in_tokenizer(int32_t vocab);
inline constexpr int32_t kStandInLeast = 270;

}  // namespace fathom
