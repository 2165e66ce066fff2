#include "serve/responses_input.h"

#include <fmt/format.h>

#include <set>

#include "serve/sampling_fields.h"

namespace fathom::serve {
namespace {

using text::JsonValue;
using Kind = JsonValue::Kind;

void add_text(std::string& out, std::string_view text) {
  if (!out.empty() && !text.empty()) out += "\n\n";
  out += text;
}

class InputReader {
 public:
  explicit InputReader(std::vector<std::string>& warnings) : warnings_(warnings) {}

  void instructions(const std::string& text) { add_text(of_role("system").content, text); }
  void user(const std::string& text) { out_.push_back({.role = "user", .content = text}); }

  void item(const JsonValue& v, const std::string& place) {
    if (!v.is(Kind::object)) refuse(place, fmt::format("is {}, it must be an object", kind_of(v)));
    Fields fields(v, place + ".");
    const auto role = fields.text("role");
    const std::string type = fields.text("type").value_or(role ? "message" : "item_reference");
    fields.ignore({"id", "status", "phase"});
    if (type == "message")
      message(fields, role.value_or(""), place);
    else if (type == "function_call")
      function_call(fields);
    else if (type == "function_call_output")
      function_call_output(fields, place);
    else if (type == "reasoning")
      reasoning(fields, place);
    else if (type == "item_reference")
      refuse(place, "refers to a stored item: this server stores nothing, send the item itself");
    else
      refuse(place, fmt::format("is an item of type {}, which is not supported", printable(type)));
    for (std::string name : fields.unknown()) {
      for (size_t at = name.find('['); at != name.npos; at = name.find('[', at + 1))
        name.erase(at + 1, name.find(']', at) - at - 1);  // a field is named once, not for each item
      if (unknown_.size() < 20) unknown_.insert(std::move(name));
    }
  }

  std::vector<text::Message> take() {
    if (!out_.empty() && out_.back().role == "assistant")
      refuse("input", "ends with an item of the assistant: a message of the user or the output of a call must follow");
    if (out_.empty() || out_.back().role == "system")
      refuse("input", "has no message behind the instructions: there is nothing to answer");
    if (!unknown_.empty())
      warnings_.push_back(fmt::format("ignored, because not known: {}", fmt::join(unknown_, ", ")));
    return std::move(out_);
  }

 private:
  [[noreturn]] static void refuse(const std::string& place, const std::string& why) {
    throw ApiError(400, "invalid_request_error", place + " " + why, place);
  }

  /// The last message, when it has this role; otherwise a new one.
  text::Message& of_role(const char* role) {
    if (out_.empty() || out_.back().role != role) out_.push_back({.role = role});
    return out_.back();
  }

  /// Text, or a list of parts of these types. In the output of a function other parts become "[Unsupported TYPE]", as
  /// in the official encoding; elsewhere they are refused.
  std::string parts(const JsonValue& v, const std::string& place, std::initializer_list<std::string_view> types,
                    bool output = false) {
    if (v.is(Kind::string)) return v.text;
    if (!v.is(Kind::array)) refuse(place, fmt::format("is {}, it must be text or a list of parts", kind_of(v)));
    std::string out;
    for (size_t i = 0; i < v.items.size(); ++i) {
      const std::string at = fmt::format("{}[{}]", place, i);
      if (!v.items[i].is(Kind::object)) refuse(at, fmt::format("is {}, it must be an object", kind_of(v.items[i])));
      Fields fields(v.items[i], at + ".");
      const std::string type = fields.text("type").value_or("");
      if (std::find(types.begin(), types.end(), type) != types.end()) {
        const auto text = fields.text(type == "refusal" ? "refusal" : "text");
        if (!text) fields.refuse("text", "is missing");
        add_text(out, *text);
        continue;
      }
      if (!output) refuse(at, fmt::format("is a part of type {}: only text is supported", printable(type)));
      add_text(out, "[Unsupported " + printable(type, 40) + "]");
      warnings_.push_back(fmt::format("{}: the model cannot see a part of type {}", at, printable(type, 40)));
    }
    return out;
  }

  void message(Fields& fields, const std::string& role, const std::string& place) {
    const JsonValue* content = fields.find("content");
    if (!content) fields.refuse("content", "is missing");
    const std::string where = place + ".content";
    if (role == "user")
      out_.push_back({.role = "user", .content = parts(*content, where, {"input_text", "text"})});
    else if (role == "system" || role == "developer")  // two names of one thing
      add_text(of_role("system").content, parts(*content, where, {"input_text", "text"}));
    else if (role == "assistant")
      add_text(of_role("assistant").content, parts(*content, where, {"output_text", "input_text", "text", "refusal"}));
    else
      fields.refuse("role", R"(must be "user", "assistant", "system" or "developer")");
  }

  void function_call(Fields& fields) {
    text::ToolCall call;
    call.id = fields.text("call_id").value_or("");
    if (call.id.empty()) fields.refuse("call_id", "is missing");
    call.name = fields.text("name").value_or("");
    if (call.name.empty()) fields.refuse("name", "is missing");
    const auto arguments = fields.text("arguments");
    if (!arguments) fields.refuse("arguments", "is missing: it must be JSON as text");
    call.arguments = *arguments;
    const text::JsonReading reading = text::read_json(*arguments);
    if (reading.value && (!reading.value->is(Kind::object) || reading.lone_surrogate))
      fields.refuse("arguments", "must be a JSON object, as text");
    calls_.insert(call.id);
    of_role("assistant").tool_calls.push_back(std::move(call));
  }

  void function_call_output(Fields& fields, const std::string& place) {
    text::Message m{.role = "tool"};
    m.tool_call_id = fields.text("call_id").value_or("");
    if (calls_.find(m.tool_call_id) == calls_.end())
      fields.refuse("call_id", fmt::format("is {}: no item before is this call (this server stores nothing: send the "
                                           "function_call item too)",
                                           printable(m.tool_call_id)));
    const JsonValue* output = fields.find("output");
    if (!output) fields.refuse("output", "is missing");
    m.content = parts(*output, place + ".output", {"input_text", "output_text", "text"}, true);
    out_.push_back(std::move(m));
  }

  void reasoning(Fields& fields, const std::string& place) {
    std::string text;
    if (const JsonValue* content = fields.find("content"))
      text = parts(*content, place + ".content", {"reasoning_text", "text"});
    const JsonValue* summary = fields.find("summary");
    if (summary && text.empty()) text = parts(*summary, place + ".summary", {"summary_text", "text"});
    if (text.empty() && fields.find("encrypted_content"))
      warnings_.push_back(place + ": encrypted reasoning cannot be read and is left out");
    fields.ignore({"encrypted_content"});
    if (!text.empty()) add_text(of_role("assistant").reasoning_content, text);
  }

  std::vector<std::string>& warnings_;
  std::vector<text::Message> out_;
  std::set<std::string> calls_, unknown_;
};

}  // namespace

std::vector<text::Message> read_response_input(Fields& fields, std::vector<std::string>& warnings) {
  InputReader reader(warnings);
  const JsonValue* instructions = fields.find("instructions");
  if (instructions && !instructions->is(Kind::string))
    fields.refuse("instructions", fmt::format("is {}, it must be text", kind_of(*instructions)));
  if (instructions && !instructions->text.empty()) reader.instructions(instructions->text);
  const JsonValue* input = fields.find("input");
  if (!input) fields.refuse("input", "is missing: it must be text or a list of items");
  if (input->is(Kind::string)) {
    reader.user(input->text);
  } else if (input->is(Kind::array)) {
    for (size_t i = 0; i < input->items.size(); ++i) reader.item(input->items[i], fmt::format("input[{}]", i));
  } else {
    fields.refuse("input", fmt::format("is {}, it must be text or a list of items", kind_of(*input)));
  }
  return reader.take();
}

text::JsonValue read_response_tools(Fields& fields, std::vector<std::string>& warnings) {
  JsonValue out;
  out.kind = Kind::array;
  const JsonValue* tools = fields.find("tools");
  if (!tools) return out;
  if (!tools->is(Kind::array)) fields.refuse("tools", fmt::format("is {}, it must be a list", kind_of(*tools)));
  for (size_t i = 0; i < tools->items.size(); ++i) {
    const std::string place = fmt::format("tools[{}]", i);
    const JsonValue& tool = tools->items[i];
    if (!tool.is(Kind::object)) fields.refuse(place, fmt::format("is {}, it must be an object", kind_of(tool)));
    Fields inner(tool, place + ".");
    if (const std::string type = inner.text("type").value_or(""); type != "function")
      inner.refuse("type", fmt::format("is {}: only \"function\" is supported", printable(type)));
    JsonValue function;
    function.kind = Kind::object;
    const std::string name = inner.text("name").value_or("");
    if (name.empty()) inner.refuse("name", "is missing");
    function.members.emplace_back("name", text_value(name));
    if (const auto description = inner.text("description"))
      function.members.emplace_back("description", text_value(*description));
    if (const JsonValue* parameters = inner.object("parameters"))
      function.members.emplace_back("parameters", *parameters);
    if (inner.boolean("strict").value_or(false)) warnings.push_back(place + ": strict is not enforced");
    warn_of_unknown(inner, warnings);
    JsonValue entry;
    entry.kind = Kind::object;
    entry.members.emplace_back("type", text_value("function"));
    entry.members.emplace_back("function", std::move(function));
    out.items.push_back(std::move(entry));
  }
  return out;
}

}  // namespace fathom::serve
