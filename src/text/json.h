// JSON as the chat protocol needs it: read with Python's rules, numbers keep their spelling, objects keep their order,
// and written the way Python's json.dumps(ensure_ascii=False) writes.
//
// General JSON libraries do not fit: integers of any length must survive, NaN and Infinity are accepted, half a
// surrogate pair must be told apart from a syntax error, and floats are respelled. Rules: DeepSeek-V4 notes,
// section 6.1, "Arguments" and "JSON writing".
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fathom::text {

struct JsonMember;

struct JsonValue {
  enum class Kind { null, boolean, number, string, array, object };
  Kind kind = Kind::null;
  bool truth = false;            // boolean
  std::string text;              // number: as spelled (or NaN, Infinity, -Infinity); string: UTF-8
  std::vector<JsonValue> items;  // array
  /// object: in order of first appearance; of a repeated key the last value stands at the first position.
  std::vector<JsonMember> members;

  bool is(Kind k) const { return kind == k; }
  /// The member, or nullptr when this is not an object or has no such key.
  const JsonValue* find(std::string_view key) const;
  /// False for what Python calls false: null, false, zero, "", [], {}.
  bool truthy() const;
};

struct JsonMember {
  JsonMember(std::string key, JsonValue v) : name(std::move(key)), value(std::move(v)) {}
  std::string name;
  JsonValue value;
};

struct JsonReading {
  std::optional<JsonValue> value;  // absent: not valid JSON
  std::string error;               // why not, with the byte offset; empty when valid
  /// A \u escape gave half a surrogate pair (in `value` as three bytes that are not UTF-8). Valid JSON to Python, but
  /// nothing that could be written as UTF-8.
  bool lone_surrogate = false;
};

/// Reads exactly one value. Not valid: a byte-order mark, comments, trailing text, raw control characters in strings,
/// leading zeros, integers of more than 4300 digits, nesting deeper than 990, bytes that are not UTF-8.
JsonReading read_json(std::string_view text);

/// The value in json.dumps(ensure_ascii=False) form: ", " and ": ", shortest floats, non-ASCII raw.
std::string write_json(const JsonValue& value);

/// Appends `text` with the escapes of a JSON string, without the quotes.
void append_json_escaped(std::string& out, std::string_view text);

/// `text` as a JSON string with quotes.
std::string json_quoted(std::string_view text);

/// A number as Python respells it: "-0" -> "0", "1E-7" -> "1e-07", "1e16" -> "1e+16", "2.50" -> "2.5".
std::string python_number(std::string_view spelled);

/// True when `text` is one JSON value by RFC 8259 that any JSON library reads: no NaN or Infinity, no lone surrogate,
/// nested no deeper than 200.
bool is_strict_json(std::string_view text);

}  // namespace fathom::text
