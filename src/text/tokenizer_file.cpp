#include "text/tokenizer_file.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <unordered_map>

#include "base/error.h"
#include "base/utf8.h"
#include "text/byte_alphabet.h"
#include "text/json.h"

namespace fathom::text {
namespace {

using Kind = JsonValue::Kind;

constexpr int64_t kMaxId = 1 << 24;  // far above any vocabulary; keeps a hostile id from filling memory

/// Reads tokens that are written in the byte-level alphabet.
class ByteAlphabet {
 public:
  ByteAlphabet() {
    const auto alphabet = byte_alphabet();
    for (size_t b = 0; b < alphabet.size(); ++b) byte_of_.emplace(alphabet[b], static_cast<unsigned char>(b));
  }
  /// False when `token` has a character outside the alphabet.
  bool decode(std::string_view token, std::string& bytes) const {
    bytes.clear();
    for (size_t at = 0; at < token.size();) {
      const Utf8Char c = decode_utf8(token, at);
      const auto it = byte_of_.find(c.code);
      if (!c.valid || it == byte_of_.end()) return false;
      bytes += static_cast<char>(it->second);
      at += c.length;
    }
    return true;
  }

 private:
  std::unordered_map<uint32_t, unsigned char> byte_of_;
};

class FileReader {
 public:
  explicit FileReader(std::string_view name) : name_(name) {}

  TokenizerFile read(const JsonValue& root) {
    expect(root.is(Kind::object), "not a JSON object");
    only_keys(root, "the file",
              {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
               "decoder", "model"});
    require_null(root, "truncation");
    require_null(root, "padding");
    normalizer(root.find("normalizer"));
    pre_tokenizer(need(root, "pre_tokenizer", Kind::object));
    post_processor(root.find("post_processor"));
    expect(type_of(need(root, "decoder", Kind::object)) == "ByteLevel", "decoder is not ByteLevel");
    model(need(root, "model", Kind::object));
    if (const JsonValue* added = root.find("added_tokens"); added && !added->is(Kind::null)) added_tokens(*added);
    return std::move(file_);
  }

 private:
  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> text, Args&&... args) const {
    fail("{}: {}", name_, fmt::format(text, std::forward<Args>(args)...));
  }
  void expect(bool ok, std::string_view what) const {
    if (!ok) refuse("{}", what);
  }
  const JsonValue& need(const JsonValue& in, std::string_view key, Kind kind) const {
    const JsonValue* v = in.find(key);
    if (!v || !v->is(kind)) refuse("\"{}\" is missing or has the wrong type", key);
    return *v;
  }
  void only_keys(const JsonValue& v, std::string_view where, std::initializer_list<std::string_view> known) const {
    for (const auto& [key, unused] : v.members)
      if (std::find(known.begin(), known.end(), key) == known.end())
        refuse("{} has the unknown field \"{}\"", where, printable(key));
  }
  void require_null(const JsonValue& in, std::string_view key) const {
    if (const JsonValue* v = in.find(key); v && !v->is(Kind::null)) refuse("\"{}\" is not supported", key);
  }
  bool flag(const JsonValue& in, std::string_view key, bool otherwise) const {
    const JsonValue* v = in.find(key);
    if (!v || v->is(Kind::null)) return otherwise;
    if (!v->is(Kind::boolean)) refuse("\"{}\" is not true or false", key);
    return v->truth;
  }
  std::string type_of(const JsonValue& v) const {
    const JsonValue* type = v.find("type");
    return type && type->is(Kind::string) ? printable(type->text) : "without a type";
  }
  int32_t id_of(const JsonValue& v, std::string_view token) const {
    int64_t id = -1;
    if (v.is(Kind::number)) {
      const auto [end, error] = std::from_chars(v.text.data(), v.text.data() + v.text.size(), id);
      if (error != std::errc{} || end != v.text.data() + v.text.size()) id = -1;
    }
    if (id < 0 || id > kMaxId) refuse("token \"{}\" has an id that is not in 0..{}", printable(token), kMaxId);
    return static_cast<int32_t>(id);
  }

  void normalizer(const JsonValue* v) const {
    if (!v || v->is(Kind::null)) return;
    const JsonValue* list = v->find("normalizers");
    if (type_of(*v) == "Sequence" && list && list->is(Kind::array) && list->items.empty()) return;
    refuse("normalizer {} is not supported", type_of(*v));
  }

  void post_processor(const JsonValue* v) const {
    // ByteLevel moves offsets only; anything else would add tokens.
    if (v && !v->is(Kind::null) && type_of(*v) != "ByteLevel")
      refuse("post_processor {} is not supported", type_of(*v));
  }

  void pre_tokenizer(const JsonValue& v) {
    std::vector<const JsonValue*> steps;
    if (type_of(v) == "Sequence") {
      for (const JsonValue& step : need(v, "pretokenizers", Kind::array).items) steps.push_back(&step);
    } else {
      steps.push_back(&v);
    }
    bool byte_level = false;
    for (const JsonValue* step : steps) {
      const std::string type = type_of(*step);
      if (byte_level) refuse("pre_tokenizer has {} behind ByteLevel, which is not supported", type);
      if (type == "ByteLevel") {
        if (flag(*step, "add_prefix_space", true))
          refuse("pre_tokenizer ByteLevel with add_prefix_space is not supported");
        if (flag(*step, "use_regex", true)) refuse("pre_tokenizer ByteLevel with use_regex is not supported");
        byte_level = true;
      } else if (type == "Split") {
        split(*step);
      } else {
        refuse("pre_tokenizer {} is not supported", type);
      }
    }
    expect(byte_level, "pre_tokenizer does not end with ByteLevel");
  }

  void split(const JsonValue& step) {
    only_keys(step, "pre_tokenizer Split", {"type", "pattern", "behavior", "invert"});
    const JsonValue& behavior = need(step, "behavior", Kind::string);
    if (behavior.text != "Isolated")
      refuse("pre_tokenizer Split with behavior {} is not supported", printable(behavior.text));
    if (flag(step, "invert", false)) refuse("pre_tokenizer Split with invert is not supported");
    const JsonValue& pattern = need(step, "pattern", Kind::object);
    const JsonValue* regex = pattern.find("Regex");
    if (!regex || !regex->is(Kind::string)) refuse("pre_tokenizer Split without a Regex pattern is not supported");
    file_.patterns.push_back(regex->text);
  }

  void model(const JsonValue& v) {
    if (v.find("type") && type_of(v) != "BPE") refuse("model {} is not supported", type_of(v));
    only_keys(v, "the model",
              {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
               "byte_fallback", "ignore_merges", "vocab", "merges"});
    for (const std::string_view key : {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"}) {
      const JsonValue* field = v.find(key);
      if (field && field->truthy()) refuse("model with {} is not supported", key);
    }
    for (const std::string_view key : {"fuse_unk", "byte_fallback"})
      if (flag(v, key, false)) refuse("model with {} is not supported", key);
    file_.whole_pieces_first = flag(v, "ignore_merges", false);
    vocabulary(need(v, "vocab", Kind::object));
    merges(need(v, "merges", Kind::array));
  }

  void vocabulary(const JsonValue& vocab) {
    const ByteAlphabet alphabet;
    std::string bytes;
    ids_.reserve(vocab.members.size());
    for (const auto& [token, value] : vocab.members) {
      const int32_t id = id_of(value, token);
      if (token.empty()) refuse("the vocabulary has an empty token");
      place(id, token);
      ids_.emplace(token, id);
      // Added tokens may stand here too, written out; they are given their bytes later.
      file_.tokens[static_cast<size_t>(id)] = alphabet.decode(token, bytes) ? bytes : token;
    }
    file_.byte_ids.fill(-1);
    for (const auto& [token, id] : ids_)
      if (alphabet.decode(token, bytes) && bytes.size() == 1) file_.byte_ids[static_cast<unsigned char>(bytes[0])] = id;
    for (size_t b = 0; b < 256; ++b)
      if (file_.byte_ids[b] < 0) refuse("the vocabulary has no token for byte 0x{:02X}", b);
  }

  /// Makes room for `id`, which must be free.
  void place(int32_t id, std::string_view token) {
    const auto at = static_cast<size_t>(id);
    if (at >= file_.tokens.size()) file_.tokens.resize(at + 1);
    if (!file_.tokens[at].empty()) refuse("tokens share the id {}: \"{}\" is the second", id, printable(token));
  }

  void merges(const JsonValue& list) {
    file_.merges.reserve(list.items.size());
    for (size_t i = 0; i < list.items.size(); ++i) {
      std::string left, right;
      const JsonValue& m = list.items[i];
      if (m.is(Kind::array) && m.items.size() == 2 && m.items[0].is(Kind::string) && m.items[1].is(Kind::string)) {
        left = m.items[0].text, right = m.items[1].text;
      } else if (const size_t space = m.text.find(' '); m.is(Kind::string) && space != m.text.npos) {
        left = m.text.substr(0, space), right = m.text.substr(space + 1);
      } else {
        refuse("merge {} is not a pair of tokens", i);
      }
      const auto part = [&](const std::string& token) {
        const auto it = ids_.find(token);
        if (it == ids_.end()) refuse("merge {} names \"{}\", which is not in the vocabulary", i, printable(token));
        return it->second;
      };
      file_.merges.push_back({part(left), part(right), part(left + right)});
    }
  }

  void added_tokens(const JsonValue& list) {
    expect(list.is(Kind::array), "\"added_tokens\" is not a list");
    for (const JsonValue& entry : list.items) {
      AddedToken token;
      token.content = need(entry, "content", Kind::string).text;
      const std::string shown = printable(token.content);
      if (token.content.empty()) refuse("an added token is empty");
      only_keys(entry, "added token \"" + shown + "\"",
                {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
      for (const std::string_view key : {"single_word", "lstrip", "rstrip"})
        if (flag(entry, key, false)) refuse("added token \"{}\" with {} is not supported", shown, key);
      token.special = flag(entry, "special", false);
      token.normalized = flag(entry, "normalized", !token.special);
      token.id = id_of(need(entry, "id", Kind::number), token.content);
      if (const auto it = ids_.find(token.content); it != ids_.end()) {
        if (it->second != token.id)
          refuse("added token \"{}\" has id {} here and {} in the vocabulary", shown, token.id, it->second);
      } else {
        place(token.id, token.content);
        ids_.emplace(token.content, token.id);
      }
      file_.tokens[static_cast<size_t>(token.id)] = token.content;
      file_.added.push_back(std::move(token));
    }
  }

  std::string name_;
  TokenizerFile file_;
  std::unordered_map<std::string, int32_t> ids_;  // by the spelling in the file
};

}  // namespace

TokenizerFile read_tokenizer_file(std::string_view json, std::string_view name) {
  const std::string shown = printable(name, 300);
  const JsonReading reading = read_json(json);
  if (!reading.value) fail("{}: not valid JSON: {}", shown, reading.error);
  if (reading.lone_surrogate) fail("{}: a \\u escape is half a surrogate pair", shown);
  return FileReader(shown).read(*reading.value);
}

}  // namespace fathom::text
