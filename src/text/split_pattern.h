// The regular expressions of tokenizer.json, run by PCRE2 with the meaning that Oniguruma gives them.
//
// tokenizer.json is written for Oniguruma. Over the constructs accepted here both engines agree once \s and \p{..} are
// spelled out; anything else (\w, \b, ^, $, possessive {n,m}+, named groups, flags, nested classes...) is refused by
// name, because it could cut text at other places without a sign.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace fathom::text {

/// The pattern in PCRE2's spelling. Throws Error naming the construct that is not supported.
std::string translate_pattern(std::string_view pattern);

/// Working memory of matching: one for each thread that matches.
class MatchScratch {
 public:
  MatchScratch();
  ~MatchScratch();
  MatchScratch(const MatchScratch&) = delete;
  MatchScratch& operator=(const MatchScratch&) = delete;

 private:
  friend class SplitPattern;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A compiled pattern. Immutable: any number of threads may match with it, each with its own scratch.
class SplitPattern {
 public:
  /// Throws Error when the pattern is not valid or not supported.
  explicit SplitPattern(std::string_view pattern);
  ~SplitPattern();
  SplitPattern(SplitPattern&&) noexcept;
  SplitPattern& operator=(SplitPattern&&) noexcept;

  /// The first match in `text` (valid UTF-8) at or after `from`; false when there is none. Only `text` is seen:
  /// lookarounds do not reach outside it. Throws Error when the engine gives up (memory).
  bool find(std::string_view text, size_t from, MatchScratch& scratch, size_t& begin, size_t& end) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fathom::text
