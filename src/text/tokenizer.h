// Text to token ids and back, from a Hugging Face tokenizer.json (byte-level BPE).
//
// Ids are those of the Hugging Face `tokenizers` library. What tokenizer.json can ask for and this class does not do is
// an Error that names it; nothing is passed over.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fathom::text {

/// What encode does with added tokens (<think>, <｜User｜>, ...) that are spelled out in the text.
enum class AddedTokens {
  recognise,  // they become their ids: for text that the program itself wrote
  as_text,    // they are text like any other: for text from outside, which must not be able to give commands
};

/// Immutable after loading; any number of threads may use one tokenizer.
class Tokenizer {
 public:
  /// Loads tokenizer.json. Throws Error (path, what, where) when it is missing, damaged or asks for something
  /// unsupported.
  static Tokenizer load(const std::filesystem::path& path);
  /// The same from the text of the file; `name` stands for the path in messages.
  static Tokenizer from_json(std::string_view json, std::string_view name);

  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  /// Highest id + 1. A checkpoint may have more rows; ids in between may be unused.
  int32_t vocab_size() const;

  /// The ids of `text`. Bytes that are not UTF-8 are first replaced by U+FFFD, one for each maximal invalid sequence.
  /// No token is added at the beginning or end.
  std::vector<int32_t> encode(std::string_view text, AddedTokens added) const;
  /// The same, appended to `ids`.
  void encode(std::string_view text, AddedTokens added, std::vector<int32_t>& ids) const;

  /// The text of `ids`; sequences of bytes that are not UTF-8 become U+FFFD. With `skip_special` tokens marked special
  /// are left out. Throws Error on an id without a token.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

  /// True when `id` has a token.
  bool has(int64_t id) const;
  /// The bytes that `id` stands for: often only part of a character. Throws Error when it has no token.
  std::string_view bytes(int64_t id) const;
  /// True when `id` is marked special in tokenizer.json (begin and end of sentence...).
  bool is_special(int64_t id) const;
  /// True when `id` is an added token, special or not (<think>, <｜User｜>...).
  bool is_added(int64_t id) const;
  /// The id of the added token spelled exactly so.
  std::optional<int32_t> added_id(std::string_view content) const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace fathom::text
