// A strict pull parser for the small JSON files of a checkpoint: headers, indices, configs.
//
// The caller walks the document in its own shape and never builds a tree, so a hostile file costs no more memory than
// what the caller keeps. Strict means RFC 8259 and more: valid UTF-8, no duplicate key in an object, no NaN, at most
// 32 levels, numbers that fit. Every failure is an Error with the file's name and the byte offset.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>

namespace fathom {

class JsonReader {
 public:
  enum class Kind { object, array, string, number, boolean, null };

  /// Reads `text`, which outlives the reader and starts at byte `first_offset` of the file called `name`.
  JsonReader(std::string_view text, std::string name, uint64_t first_offset = 0);

  /// What comes next. Throws Error when it is no value.
  Kind kind();

  /// Calls field(key) for each member, in order; it must read exactly one value.
  template <typename Field>
  void object(Field&& field) {
    open('{');
    std::unordered_set<std::string> keys;
    for (bool more = !closes('}'); more; more = continues('}')) {
      const auto [key, fresh] = keys.insert(string());
      if (!fresh) fail_duplicate(*key);
      expect(':');
      field(static_cast<const std::string&>(*key));
    }
    --depth_;
  }

  /// Calls element() for each element; it must read exactly one value.
  template <typename Element>
  void array(Element&& element) {
    open('[');
    for (bool more = !closes(']'); more; more = continues(']')) element();
    --depth_;
  }

  std::string string();
  double number();    // finite
  int64_t integer();  // written without fraction and exponent, within int64
  bool boolean();
  void null();
  void skip();
  /// Throws Error unless only white space is left.
  void finish();

  /// Throws Error "NAME: byte OFFSET: what" for the place of the value read last.
  [[noreturn]] void fail(std::string_view what) const;
  const std::string& name() const { return name_; }

 private:
  void space();
  void open(char bracket);
  bool closes(char bracket);
  bool continues(char bracket);
  void expect(char c);
  void literal(std::string_view word);
  std::string_view number_token();
  void escape(std::string& out);
  uint32_t hex4();
  [[noreturn]] void fail_here(std::string_view what);
  [[noreturn]] void fail_duplicate(const std::string& key);
  [[noreturn]] void fail_kind(std::string_view wanted);

  std::string_view text_;
  std::string name_;
  uint64_t first_offset_;
  size_t at_ = 0, value_at_ = 0;
  int depth_ = 0;
};

}  // namespace fathom
