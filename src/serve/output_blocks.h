// An answer as a sequence of blocks: thinking, text and calls, each begun, filled and ended before the next begins. The
// APIs that speak in blocks or items write them from here, streamed and whole.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "serve/generation.h"

namespace fathom::serve {

struct OutputBlock {
  enum class Kind { thinking, text, call };
  Kind kind = Kind::text;
  std::string text;    // everything so far; of a call its arguments, JSON
  std::string name;    // of a call
  int call = -1;       // counts the calls from 0
  bool stands = true;  // false: a call whose markup was broken or cut off, its arguments may be no JSON
};

/// Is told what happens to the blocks, in order. `index` counts from 0.
class BlockWriter {
 public:
  virtual ~BlockWriter() = default;
  virtual void begin(size_t index, const OutputBlock& block) = 0;
  /// `piece` was appended to block.text.
  virtual void piece(size_t index, const OutputBlock& block, std::string_view piece) = 0;
  virtual void end(size_t index, const OutputBlock& block) = 0;
};

class OutputBlocks {
 public:
  /// `writer` may be null and outlives this.
  explicit OutputBlocks(BlockWriter* writer = nullptr) : writer_(writer) {}

  void add(const TextPiece& piece);
  /// The output is over: ends the block that is open.
  void finish();
  /// All blocks. Whether a call stands is known behind finish(); until then a streamed call may stand or not.
  const std::vector<OutputBlock>& all() const { return blocks_; }

 private:
  void text(OutputBlock::Kind kind, std::string_view piece);
  void calls(const std::vector<text::OutputEvent>& events);
  void begin(OutputBlock block);
  void append(std::string_view piece);
  void end();
  void void_calls();

  BlockWriter* writer_;
  std::vector<OutputBlock> blocks_;
  bool open_ = false;   // the last block
  size_t decided_ = 0;  // blocks before this one are decided: their calls stand or do not
};

}  // namespace fathom::serve
