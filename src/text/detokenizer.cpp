#include "text/detokenizer.h"

#include "base/utf8.h"

namespace fathom::text {

std::string Detokenizer::push(int32_t id) {
  const std::string_view bytes = tokenizer_->bytes(id);
  if (special_ == SpecialTokens::hide && tokenizer_->is_special(id)) return {};
  held_ += bytes;
  const size_t whole = utf8_complete_prefix(held_);
  std::string out = utf8_repaired(std::string_view(held_).substr(0, whole));
  held_.erase(0, whole);
  return out;
}

std::string Detokenizer::finish() {
  std::string out = utf8_repaired(held_);
  held_.clear();
  return out;
}

}  // namespace fathom::text
