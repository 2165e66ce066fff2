// The text of a trace as a sliding window: the whole mapping of a plain file, or blocks of a gzip stream that a
// second thread inflates ahead.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/file.h"

namespace fathom::trace {

class TextSource {
 public:
  virtual ~TextSource() = default;

  std::string_view window() const { return window_; }
  /// Nothing follows the window.
  bool last() const { return last_; }
  /// Offset of the window's first byte in the whole text.
  uint64_t offset() const { return offset_; }

  /// Drops the first `consumed` bytes of the window.
  virtual void advance(size_t consumed) = 0;
  /// Unless last(): appends at least as much new text as the window holds, or all there is (then it becomes the last).
  virtual void grow() = 0;

  /// Bytes of the file handled so far, for progress.
  virtual uint64_t file_position() const = 0;
  /// Why the text ends early, when the file is damaged; empty otherwise. Known once last().
  virtual std::string damage() const { return {}; }

 protected:
  std::string_view window_;
  bool last_ = false;
  uint64_t offset_ = 0;
};

/// `file` may be null (then `text` lives elsewhere); with it, pages behind the window are given back.
std::unique_ptr<TextSource> plain_text_source(std::string_view text, const MappedFile* file);
/// Inflates `bytes` (gzip, several members) in blocks of `block_bytes`. Damage ends the text, it does not throw.
std::unique_ptr<TextSource> gzip_text_source(std::span<const std::byte> bytes, const std::string& name,
                                             size_t block_bytes);

}  // namespace fathom::trace
