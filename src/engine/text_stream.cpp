#include "engine/text_stream.h"

namespace fathom {

TextStream::TextStream(const text::Tokenizer& tokenizer, const TextOptions& options)
    : tokenizer_(tokenizer),
      detokenizer_(tokenizer,
                   options.chat || options.show_special ? text::SpecialTokens::show : text::SpecialTokens::hide),
      stop_(options.stop, options.include_stop) {
  if (options.chat) parser_.emplace(text::ParserOptions{options.thinking, text::CallDelivery::streamed});
  if (options.chat && options.stop_in_reasoning) reasoning_stop_.emplace(options.stop, options.include_stop);
}

/// Shows what was held back of the reasoning, once something else follows it.
void TextStream::end_reasoning(TextPiece& piece) {
  if (reasoning_stop_ && !reasoning_stop_->stopped()) piece.reasoning += reasoning_stop_->finish();
}

TextPiece TextStream::sort(std::vector<text::OutputEvent> events) {
  TextPiece piece;
  for (auto& event : events) {
    if (stopped()) break;
    if (event.kind == text::OutputKind::reasoning) {
      piece.reasoning += reasoning_stop_ ? reasoning_stop_->push(event.text) : event.text;
      continue;
    }
    end_reasoning(piece);
    if (event.kind == text::OutputKind::content)
      piece.content += stop_.push(event.text);
    else
      piece.calls.push_back(std::move(event));
  }
  return piece;
}

TextPiece TextStream::push(int32_t token) {
  const std::string text = tokenizer_.has(token) ? detokenizer_.push(token) : detokenizer_.finish() + "\xEF\xBF\xBD";
  if (parser_) return sort(parser_->push(text));
  return {{}, stop_.push(text), {}};
}

TextPiece TextStream::finish() {
  const std::string text = detokenizer_.finish();
  TextPiece piece;
  if (parser_) {
    piece = sort(parser_->push(text));
    TextPiece rest = sort(parser_->finish());
    piece.reasoning += rest.reasoning, piece.content += rest.content;
    piece.calls.insert(piece.calls.end(), rest.calls.begin(), rest.calls.end());
    end_reasoning(piece);
  } else {
    piece.content = stop_.push(text);
  }
  piece.content += stop_.finish();
  return piece;
}

}  // namespace fathom
