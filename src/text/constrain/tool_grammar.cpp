#include "text/constrain/tool_grammar.h"

#include <algorithm>

#include "base/error.h"
#include "text/constrain/json_grammar.h"

namespace fathom::text {
namespace {

using Sequence = Grammar::Sequence;
using Symbol = Grammar::Symbol;
using Kind = JsonValue::Kind;

constexpr std::string_view tag = "｜DSML｜";
constexpr int64_t most_calls = 64;

/// Builds the calls of one function.
class CallGrammar {
 public:
  CallGrammar(Grammar& g, const ToolFunction& function)
      : g_(g), function_(function), json_(g, function.parameters ? *function.parameters : nothing_) {}

  /// From the opening to the closing tag, without a line break behind it.
  Sequence call() {
    Sequence s = g_.literal("<" + std::string(tag) + "invoke name=\"" + function_.name + "\">\n");
    s.push_back(parameters());
    return s + g_.literal("\n</" + std::string(tag) + "invoke>");
  }

 private:
  /// The parameters with line breaks between them.
  Symbol parameters() {
    if (!function_.parameters) return g_.choice({{}});
    const JsonValue& schema = json_.resolved(*function_.parameters, "#");
    const JsonValue* properties = schema.find("properties");
    const JsonValue* required = schema.find("required");
    if (!schema.is(Kind::object) || (properties && !properties->is(Kind::object)))
      fail("the parameters of function {} are not a schema of an object", printable(function_.name));
    std::vector<Part> parts;
    for (size_t k = 0; properties && k < properties->members.size(); ++k) {
      const JsonMember& p = properties->members[k];
      const bool needed = required && std::any_of(required->items.begin(), required->items.end(),
                                                  [&](const JsonValue& name) { return name.text == p.name; });
      parts.push_back({parameter(p.name, p.value, "#/properties/" + p.name), needed});
    }
    const Symbol nothing = g_.choice({{}});
    return in_order(g_, parts, nothing, g_.choice({g_.literal("\n")}), {nothing, nothing});
  }

  Symbol parameter(const std::string& name, const JsonValue& stated, const std::string& pointer) {
    const JsonValue& schema = json_.resolved(stated, pointer);
    const Sequence open = g_.literal("<" + std::string(tag) + "parameter name=\"" + name + "\" string=\"");
    const Sequence close = g_.literal("</" + std::string(tag) + "parameter>");
    if (is_text(schema)) return g_.choice({open + g_.literal("true\">") + Sequence{raw_text(schema)} + close});
    return g_.choice({open + g_.literal("false\">") + Sequence{json_.schema(stated, pointer)} + close});
  }

  /// Texts have a form of their own; a schema that allows other types beside them is written as JSON.
  static bool is_text(const JsonValue& schema) {
    const JsonValue* type = schema.find("type");
    return type && type->is(Kind::string) && type->text == "string";
  }

  Symbol raw_text(const JsonValue& schema) {
    for (const char* keyword : {"minLength", "maxLength", "pattern"})
      if (schema.find(keyword)) fail("{} of a text parameter is not supported", keyword);
    if (const JsonValue* list = schema.find("enum"); list && list->is(Kind::array) && !list->items.empty()) {
      std::vector<Sequence> ways;
      for (const JsonValue& v : list->items) ways.push_back(g_.literal(v.text));
      return g_.choice(std::move(ways));
    }
    if (const JsonValue* constant = schema.find("const")) return g_.choice({g_.literal(constant->text)});
    // A value ends at the first "/" + tag + "parameter", so it cannot contain that.
    return text_without(g_, "/" + std::string(tag) + "parameter");
  }

  const JsonValue nothing_;
  Grammar& g_;
  const ToolFunction& function_;
  JsonGrammar json_;
};

}  // namespace

Grammar tool_call_grammar(std::span<const ToolFunction> functions, bool several) {
  if (functions.empty()) fail("a tool call is required, but there are no tools");
  Grammar g;
  std::vector<Sequence> calls;
  for (const ToolFunction& f : functions) {
    try {
      calls.push_back(CallGrammar(g, f).call());
    } catch (const Error& e) {
      fail("function {}: {}", printable(f.name), e.what());
    }
  }
  const Symbol call = g.choice(std::move(calls));
  const Symbol more = g.repeat(g.literal("\n") + Sequence{call}, 0, several ? most_calls - 1 : 0);
  const std::string name(tag);
  g.set_start(g.choice(
      {g.literal("\n\n<" + name + "tool_calls>\n") + Sequence{call, more} + g.literal("\n</" + name + "tool_calls>")}));
  return g;
}

}  // namespace fathom::text
