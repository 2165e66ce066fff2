#include "serve/output_blocks.h"

namespace fathom::serve {

using text::OutputKind;
using Kind = OutputBlock::Kind;

void OutputBlocks::add(const TextPiece& piece) {
  if (!piece.reasoning.empty()) text(Kind::thinking, piece.reasoning);
  // Text of the same step stands before a call that begins, and behind one that was being written.
  const bool in_call = open_ && blocks_.back().kind == Kind::call;
  if (in_call) calls(piece.calls);
  if (!piece.content.empty()) text(Kind::text, piece.content);
  if (!in_call) calls(piece.calls);
}

void OutputBlocks::finish() {
  void_calls();
  end();
}

void OutputBlocks::void_calls() {
  for (; decided_ < blocks_.size(); ++decided_)
    if (blocks_[decided_].kind == Kind::call) blocks_[decided_].stands = false;
}

void OutputBlocks::text(Kind kind, std::string_view piece) {
  if (!open_ || blocks_.back().kind != kind) begin({.kind = kind});
  append(piece);
}

void OutputBlocks::calls(const std::vector<text::OutputEvent>& events) {
  for (const auto& event : events) {
    switch (event.kind) {
      case OutputKind::call_begin:
        begin({.kind = Kind::call, .name = event.text, .call = event.call});
        break;
      case OutputKind::call_arguments:
        if (open_ && blocks_.back().call == event.call) append(event.text);
        break;
      case OutputKind::calls_done:
        decided_ = blocks_.size();
        end();
        break;
      case OutputKind::malformed:
      case OutputKind::cut:
        void_calls();
        if (open_ && blocks_.back().kind == Kind::call) end();
        break;
      default:  // call_end: the block stays open until its fate is known or another begins
        break;
    }
  }
}

void OutputBlocks::begin(OutputBlock block) {
  end();
  blocks_.push_back(std::move(block));
  open_ = true;
  if (writer_) writer_->begin(blocks_.size() - 1, blocks_.back());
}

void OutputBlocks::append(std::string_view piece) {
  if (piece.empty()) return;
  blocks_.back().text += piece;
  if (writer_) writer_->piece(blocks_.size() - 1, blocks_.back(), piece);
}

void OutputBlocks::end() {
  if (!open_) return;
  open_ = false;
  if (writer_) writer_->end(blocks_.size() - 1, blocks_.back());
}

}  // namespace fathom::serve
