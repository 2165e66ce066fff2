// Grammars of JSON: any value, any object, and what a JSON schema asks for.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "text/constrain/grammar.h"
#include "text/json.h"

namespace fathom::text {

/// Writes the rules of schemas into a grammar. Supported: type (one or several), properties, required,
/// additionalProperties, items, minItems, maxItems, minLength, maxLength, enum, const, anyOf, oneOf (as anyOf), allOf
/// of one, $ref within the document, nullable, true and {} (anything). Annotations (title, description, default,
/// examples, format and the like) change nothing. Anything else would allow too much if it were passed over, and is an
/// Error that names the place: "#/properties/age: minimum is not supported".
///
/// Properties come in the order of the schema. Objects with properties have others only where additionalProperties says
/// so. White space is what people write: a blank, or a line break and an indent.
class JsonGrammar {
 public:
  /// `document` is what $ref refers to; it outlives this.
  JsonGrammar(Grammar& grammar, const JsonValue& document);

  /// `schema` lies in the document at `pointer` ("#", "#/properties/a").
  Grammar::Symbol schema(const JsonValue& schema, const std::string& pointer);
  Grammar::Symbol any_value();
  Grammar::Symbol any_object();
  Grammar::Symbol white_space() const { return space_; }
  /// The schema behind its $ref, if it is one.
  const JsonValue& resolved(const JsonValue& schema, const std::string& pointer);

 private:
  Grammar::Symbol build(const JsonValue& schema, const std::string& pointer);
  void check_keywords(const JsonValue& schema, const std::string& pointer) const;
  Grammar::Symbol of_types(const JsonValue& schema, const std::string& pointer);
  Grammar::Symbol of_type(std::string_view type, const JsonValue& schema, const std::string& pointer);
  Grammar::Symbol object(const JsonValue& schema, const std::string& pointer);
  Grammar::Symbol array(const JsonValue& schema, const std::string& pointer);
  Grammar::Symbol text(const JsonValue& schema, const std::string& pointer);
  Grammar::Symbol alternatives(const JsonValue& list, const std::string& pointer);
  Grammar::Symbol list_of(Grammar::Symbol item, int64_t least, int64_t most);
  int64_t count(const JsonValue& schema, const char* keyword, int64_t otherwise, const std::string& pointer) const;
  Grammar::Symbol separator(char c);

  Grammar& g_;
  const JsonValue& document_;
  std::map<std::string, Grammar::Symbol> by_pointer_;
  Grammar::Symbol space_, character_, string_, number_, integer_, value_, object_;
  int depth_ = 0;
};

/// The part of `document` at a JSON pointer such as "#/$defs/item"; nullptr when there is none.
const JsonValue* at_pointer(const JsonValue& document, std::string_view pointer);

/// Output that is one JSON object.
Grammar json_object_grammar();
/// Output that is one JSON value of this schema.
Grammar json_schema_grammar(const JsonValue& schema);

}  // namespace fathom::text
