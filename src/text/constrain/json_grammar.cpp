#include "text/constrain/json_grammar.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/error.h"

namespace fathom::text {
namespace {

using Sequence = Grammar::Sequence;
using Symbol = Grammar::Symbol;
using Kind = JsonValue::Kind;

constexpr std::array<std::string_view, 18> supported = {"type",      "properties", "required", "additionalProperties",
                                                        "items",     "minItems",   "maxItems", "minLength",
                                                        "maxLength", "enum",       "const",    "anyOf",
                                                        "oneOf",     "allOf",      "$ref",     "nullable",
                                                        "$defs",     "definitions"};
constexpr std::array<std::string_view, 16> annotations = {
    "title",   "description", "default",    "examples", "example",   "format",          "$schema",
    "$id",     "$comment",    "deprecated", "readOnly", "writeOnly", "contentEncoding", "contentMediaType",
    "$anchor", "externalDocs"};

template <size_t N>
bool contains(const std::array<std::string_view, N>& list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

std::string escaped_pointer(std::string_view key) {
  std::string out;
  for (const char c : key) out += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
  return out;
}

}  // namespace

const JsonValue* at_pointer(const JsonValue& document, std::string_view pointer) {
  if (!pointer.starts_with('#')) return nullptr;
  pointer.remove_prefix(1);
  const JsonValue* at = &document;
  while (at && !pointer.empty()) {
    if (pointer.front() != '/') return nullptr;
    pointer.remove_prefix(1);
    const size_t end = std::min(pointer.find('/'), pointer.size());
    std::string key;
    for (size_t i = 0; i < end; ++i) {
      if (pointer[i] == '~' && i + 1 < end) {
        key += pointer[++i] == '1' ? '/' : '~';
      } else {
        key += pointer[i];
      }
    }
    pointer.remove_prefix(end);
    if (at->is(Kind::array)) {
      size_t index = 0;
      const auto [stop, error] = std::from_chars(key.data(), key.data() + key.size(), index);
      at = error == std::errc() && stop == key.data() + key.size() && index < at->items.size() ? &at->items[index]
                                                                                               : nullptr;
    } else {
      at = at->find(key);
    }
  }
  return at;
}

JsonGrammar::JsonGrammar(Grammar& grammar, const JsonValue& document) : g_(grammar), document_(document) {
  const Symbol indent = g_.repeat({g_.set(bytes_of(" \t"))}, 0, 64);
  space_ = g_.choice({{}, g_.literal(" "), g_.literal("\n") + Sequence{indent}});

  const Symbol hex = g_.set(bytes_of("0123456789abcdefABCDEF"));
  const Symbol plain = utf8_character(g_, byte_range(0, 0x1F) | bytes_of("\"\\"));
  // \u escapes: any but halves of surrogate pairs, or a whole pair.
  const Symbol d_low = g_.set(bytes_of("01234567")), d_high = g_.set(bytes_of("89abAB")),
               d_last = g_.set(bytes_of("cdefCDEF"));
  const Symbol d = g_.set(bytes_of("dD")), other = g_.set(bytes_of("0123456789abcefABCEF"));
  const Symbol unicode = g_.choice({{other, hex, hex, hex},
                                    {d, d_low, hex, hex},
                                    Sequence{d, d_high, hex, hex} + g_.literal("\\u") + Sequence{d, d_last, hex, hex}});
  const Symbol escape = g_.choice({{g_.set(bytes_of("\"\\/bfnrt"))}, g_.literal("u") + Sequence{unicode}});
  character_ = g_.choice({{plain}, g_.literal("\\") + Sequence{escape}});
  string_ = g_.choice({g_.literal("\"") + Sequence{g_.repeat({character_})} + g_.literal("\"")});

  const Symbol digit = g_.set(byte_range('0', '9')), first = g_.set(byte_range('1', '9'));
  const Symbol minus = g_.optional(g_.literal("-"));
  const Symbol whole = g_.choice({g_.literal("0"), {first, g_.repeat({digit}, 0, 18)}});
  const Symbol fraction = g_.optional(g_.literal(".") + Sequence{digit, g_.repeat({digit}, 0, 17)});
  const Symbol exponent =
      g_.optional({g_.set(bytes_of("eE")), g_.optional({g_.set(bytes_of("+-"))}), digit, g_.repeat({digit}, 0, 2)});
  integer_ = g_.choice({{minus, whole}});
  number_ = g_.choice({{minus, whole, fraction, exponent}});

  value_ = g_.add_rule();
  const Symbol member = g_.choice({{string_, space_, separator(':'), space_, value_}});
  const Symbol more = g_.repeat({space_, separator(','), space_, member});
  object_ = g_.choice({g_.literal("{") + Sequence{space_} + g_.literal("}"),
                       g_.literal("{") + Sequence{space_, member, more, space_} + g_.literal("}")});
  for (const Sequence& s : {Sequence{object_}, Sequence{list_of(value_, 0, -1)}, Sequence{string_}, Sequence{number_},
                            g_.literal("true"), g_.literal("false"), g_.literal("null")})
    g_.add_alternative(value_, s);
}

Symbol JsonGrammar::separator(char c) {
  return g_.set(bytes_of(std::string_view(&c, 1)));
}

Symbol JsonGrammar::any_value() {
  return value_;
}

Symbol JsonGrammar::any_object() {
  return object_;
}

/// A list of `least` to `most` items.
Symbol JsonGrammar::list_of(Symbol item, int64_t least, int64_t most) {
  const Symbol more = g_.choice({{space_, separator(','), space_, item}});
  std::vector<Sequence> ways;
  if (least == 0) ways.push_back(g_.literal("[") + Sequence{space_} + g_.literal("]"));
  if (most != 0) {
    const Symbol rest = g_.repeat({more}, std::max<int64_t>(least - 1, 0), most < 0 ? -1 : most - 1);
    ways.push_back(g_.literal("[") + Sequence{space_, item, rest, space_} + g_.literal("]"));
  }
  return g_.choice(std::move(ways));
}

const JsonValue& JsonGrammar::resolved(const JsonValue& schema, const std::string& pointer) {
  const JsonValue* at = &schema;
  for (int hops = 0; at->is(Kind::object); ++hops) {
    const JsonValue* ref = at->find("$ref");
    if (!ref) return *at;
    const JsonValue* to = ref->is(Kind::string) ? at_pointer(document_, ref->text) : nullptr;
    if (!to)
      fail("{}: $ref {}: nothing is there", printable(pointer),
           ref->is(Kind::string) ? printable(ref->text) : "is not a text");
    if (hops > 100) fail("{}: $ref leads round in a circle", printable(pointer));
    at = to;
  }
  return *at;
}

Symbol JsonGrammar::schema(const JsonValue& schema, const std::string& pointer) {
  if (schema.is(Kind::object))
    if (const JsonValue* ref = schema.find("$ref")) {
      const JsonValue& to = resolved(schema, pointer);
      return this->schema(to, ref->text == "#" ? "#" : ref->text);
    }
  // Known places are rules already, also while they are being built: that is how a schema refers to itself.
  const auto [at, fresh] = by_pointer_.try_emplace(pointer, Symbol{});
  if (!fresh) return at->second;
  at->second = g_.add_rule();
  const Symbol rule = at->second;
  if (++depth_ > 200) fail("{}: the schema is nested too deep", printable(pointer, 200));
  g_.add_alternative(rule, {build(schema, pointer)});
  --depth_;
  return rule;
}

void JsonGrammar::check_keywords(const JsonValue& schema, const std::string& pointer) const {
  for (const JsonMember& m : schema.members)
    if (!contains(supported, m.name) && !contains(annotations, m.name) && !m.name.starts_with("x-"))
      fail("{}: {} is not supported", printable(pointer, 200), printable(m.name));
}

Symbol JsonGrammar::build(const JsonValue& schema, const std::string& pointer) {
  if (schema.is(Kind::boolean) && schema.truth) return value_;
  if (!schema.is(Kind::object)) fail("{}: a schema is an object or true", printable(pointer, 200));
  check_keywords(schema, pointer);
  std::vector<Sequence> ways;
  if (const JsonValue* constant = schema.find("const")) {
    ways.push_back(g_.literal(write_json(*constant)));
  } else if (const JsonValue* list = schema.find("enum")) {
    if (!list->is(Kind::array) || list->items.empty())
      fail("{}: enum must be a list that is not empty", printable(pointer, 200));
    for (const JsonValue& v : list->items) ways.push_back(g_.literal(write_json(v)));
  } else if (const JsonValue* any = schema.find("anyOf")) {
    ways.push_back({alternatives(*any, pointer + "/anyOf")});
  } else if (const JsonValue* one = schema.find("oneOf")) {
    ways.push_back({alternatives(*one, pointer + "/oneOf")});
  } else if (const JsonValue* all = schema.find("allOf")) {
    if (!all->is(Kind::array) || all->items.size() != 1)
      fail("{}: allOf of more than one schema is not supported", printable(pointer, 200));
    ways.push_back({this->schema(all->items[0], pointer + "/allOf/0")});
  } else {
    ways.push_back({of_types(schema, pointer)});
  }
  // Beside enum, anyOf and the like the other keywords would have to hold too.
  const bool combined = schema.find("anyOf") || schema.find("oneOf") || schema.find("allOf");
  if (combined)
    for (const char* keyword : {"properties", "required", "items", "enum", "const"})
      if (schema.find(keyword))
        fail("{}: {} beside anyOf, oneOf or allOf is not supported", printable(pointer, 200), keyword);
  if (const JsonValue* nullable = schema.find("nullable"); nullable && nullable->truthy())
    ways.push_back(g_.literal("null"));
  return g_.choice(std::move(ways));
}

Symbol JsonGrammar::alternatives(const JsonValue& list, const std::string& pointer) {
  if (!list.is(Kind::array) || list.items.empty())
    fail("{}: must be a list that is not empty", printable(pointer, 200));
  std::vector<Sequence> ways;
  for (size_t i = 0; i < list.items.size(); ++i)
    ways.push_back({schema(list.items[i], pointer + "/" + std::to_string(i))});
  return g_.choice(std::move(ways));
}

Symbol JsonGrammar::of_types(const JsonValue& schema, const std::string& pointer) {
  const JsonValue* type = schema.find("type");
  if (!type) {
    if (schema.find("properties") || schema.find("required") || schema.find("additionalProperties"))
      return object(schema, pointer);
    if (schema.find("items") || schema.find("minItems") || schema.find("maxItems")) return array(schema, pointer);
    if (schema.find("minLength") || schema.find("maxLength")) return text(schema, pointer);
    return value_;
  }
  if (type->is(Kind::string)) return of_type(type->text, schema, pointer);
  if (!type->is(Kind::array) || type->items.empty())
    fail("{}: type must be a name or a list of names", printable(pointer, 200));
  std::vector<Sequence> ways;
  for (const JsonValue& t : type->items) {
    if (!t.is(Kind::string)) fail("{}: type must be a name or a list of names", printable(pointer, 200));
    ways.push_back({of_type(t.text, schema, pointer)});
  }
  return g_.choice(std::move(ways));
}

Symbol JsonGrammar::of_type(std::string_view type, const JsonValue& schema, const std::string& pointer) {
  if (type == "object") return object(schema, pointer);
  if (type == "array") return array(schema, pointer);
  if (type == "string") return text(schema, pointer);
  if (type == "number") return number_;
  if (type == "integer") return integer_;
  if (type == "boolean") return g_.choice({g_.literal("true"), g_.literal("false")});
  if (type == "null") return g_.choice({g_.literal("null")});
  fail("{}: unknown type {}", printable(pointer, 200), printable(std::string(type)));
}

int64_t JsonGrammar::count(const JsonValue& schema, const char* keyword, int64_t otherwise,
                           const std::string& pointer) const {
  const JsonValue* value = schema.find(keyword);
  if (!value) return otherwise;
  int64_t n = -1;
  const std::string& digits = value->text;
  const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), n);
  if (!value->is(Kind::number) || error != std::errc() || stop != digits.data() + digits.size() || n < 0)
    fail("{}: {} must be a whole number that is not negative", printable(pointer, 200), keyword);
  return n;
}

Symbol JsonGrammar::text(const JsonValue& schema, const std::string& pointer) {
  const int64_t least = count(schema, "minLength", 0, pointer), most = count(schema, "maxLength", -1, pointer);
  if (least == 0 && most < 0) return string_;
  if (most >= 0 && least > most) fail("{}: minLength is more than maxLength", printable(pointer, 200));
  return g_.choice({g_.literal("\"") + Sequence{g_.repeat({character_}, least, most)} + g_.literal("\"")});
}

Symbol JsonGrammar::array(const JsonValue& schema, const std::string& pointer) {
  const int64_t least = count(schema, "minItems", 0, pointer), most = count(schema, "maxItems", -1, pointer);
  if (most >= 0 && least > most) fail("{}: minItems is more than maxItems", printable(pointer, 200));
  const JsonValue* items = schema.find("items");
  return list_of(items ? this->schema(*items, pointer + "/items") : value_, least, most);
}

Symbol JsonGrammar::object(const JsonValue& schema, const std::string& pointer) {
  const JsonValue* properties = schema.find("properties");
  const JsonValue* required = schema.find("required");
  const JsonValue* additional = schema.find("additionalProperties");
  if (properties && !properties->is(Kind::object)) fail("{}: properties must be an object", printable(pointer, 200));
  if (required && !required->is(Kind::array)) fail("{}: required must be a list", printable(pointer, 200));
  const bool open = additional ? !(additional->is(Kind::boolean) && !additional->truth) : !properties;

  std::vector<std::string> names;
  if (required) {
    for (const JsonValue& name : required->items) {
      if (!name.is(Kind::string)) fail("{}: required must be a list of names", printable(pointer, 200));
      if (!properties || !properties->find(name.text))
        fail("{}: {} is required but not among the properties", printable(pointer, 200), printable(name.text));
      names.push_back(name.text);
    }
  }
  const Symbol comma = g_.choice({{space_, separator(','), space_}});
  const Symbol close = g_.choice({Sequence{space_} + g_.literal("}")});
  std::array<Symbol, 2> end = {close, close};
  if (open) {
    const Symbol value = additional && additional->is(Kind::object)
                             ? this->schema(*additional, pointer + "/additionalProperties")
                             : value_;
    const Symbol member = g_.choice({{string_, space_, separator(':'), space_, value}});
    const Symbol more = g_.choice({{g_.repeat({comma, member}), close}});
    end = {g_.choice({{close}, {space_, member, more}}), more};
  }
  std::vector<Part> parts;
  for (size_t k = 0; properties && k < properties->members.size(); ++k) {
    const JsonMember& p = properties->members[k];
    const Symbol value = this->schema(p.value, pointer + "/properties/" + escaped_pointer(p.name));
    const Symbol member =
        g_.choice({g_.literal(json_quoted(p.name)) + Sequence{space_, separator(':'), space_, value}});
    parts.push_back({member, std::find(names.begin(), names.end(), p.name) != names.end()});
  }
  return g_.choice({g_.literal("{") + Sequence{in_order(g_, parts, space_, comma, end)}});
}

Grammar json_object_grammar() {
  Grammar g;
  const JsonValue nothing;
  JsonGrammar json(g, nothing);
  g.set_start(g.choice({{json.white_space(), json.any_object()}}));
  return g;
}

Grammar json_schema_grammar(const JsonValue& schema) {
  Grammar g;
  JsonGrammar json(g, schema);
  const Symbol value = json.schema(schema, "#");
  g.set_start(g.choice({{json.white_space(), value}}));
  return g;
}

}  // namespace fathom::text
