#include "text/chat_json.h"

#include "base/error.h"

namespace fathom::text {
namespace {

using Kind = JsonValue::Kind;

const char* name_of(Kind kind) {
  constexpr const char* kNames[] = {"null", "true or false", "a number", "text", "a list", "an object"};
  return kNames[static_cast<int>(kind)];
}

/// One message; `place_` is its name in errors.
class MessageReader {
 public:
  MessageReader(const JsonValue& v, std::string place, const MessageReading& reading)
      : v_(v), place_(std::move(place)), reading_(reading) {}

  Message read() {
    if (!v_.is(Kind::object)) fail("{} is {}, not an object", place_, name_of(v_.kind));
    Message m;
    m.role = text("role");
    if (m.role.empty()) fail("{} has no role", place_);
    m.content = content("content", m.role == "tool");
    m.reasoning_content = content("reasoning_content", false);
    m.tool_call_id = text("tool_call_id");
    m.tools = tools();
    if (const JsonValue* format = field("response_format")) m.response_format = write_json(*format);
    if (field("task")) m.task = text("task");
    if (const JsonValue* flag = field("wo_eos")) {
      if (!flag->is(Kind::boolean)) refuse("wo_eos", *flag, "true or false");
      m.wo_eos = flag->truth;
    }
    if (const JsonValue* calls = field("tool_calls")) {
      if (!calls->is(Kind::array)) refuse("tool_calls", *calls, "a list");
      for (size_t i = 0; i < calls->items.size(); ++i)
        m.tool_calls.push_back(call(calls->items[i], fmt::format("{}.tool_calls[{}]", place_, i)));
    }
    return m;
  }

 private:
  [[noreturn]] void refuse(std::string_view key, const JsonValue& got, std::string_view wanted) const {
    fail("{}.{} is {}, not {}", place_, key, name_of(got.kind), wanted);
  }
  /// The member, or nullptr when it is missing or null.
  const JsonValue* field(std::string_view key) const {
    const JsonValue* v = v_.find(key);
    return v && !v->is(Kind::null) ? v : nullptr;
  }
  std::string text(std::string_view key) const {
    const JsonValue* v = field(key);
    if (v && !v->is(Kind::string)) refuse(key, *v, "text");
    return v ? v->text : "";
  }

  std::string content(std::string_view key, bool tool) const {
    const JsonValue* v = field(key);
    if (!v) return "";
    if (v->is(Kind::string)) return v->text;
    if (!v->is(Kind::array)) refuse(key, *v, "text or a list of parts");
    std::string out;
    for (size_t i = 0; i < v->items.size(); ++i) {
      if (i > 0) out += "\n\n";
      out += part(v->items[i], fmt::format("{}.{}[{}]", place_, key, i), tool);
    }
    return out;
  }

  static std::string part(const JsonValue& v, const std::string& place, bool tool) {
    if (!v.is(Kind::object)) fail("{} is {}, not an object", place, name_of(v.kind));
    const JsonValue* type = v.find("type");
    if (type && !type->is(Kind::string) && !type->is(Kind::null))
      fail("{}.type is {}, not text", place, name_of(type->kind));
    const std::string kind = type && type->is(Kind::string) ? type->text : "None";
    if (kind == "text") {
      const JsonValue* text = v.find("text");
      if (text && !text->is(Kind::string)) fail("{}.text is {}, not text", place, name_of(text->kind));
      return text ? text->text : "";
    }
    if (!tool) fail("{}: parts of type \"{}\" are not supported, only text", place, printable(kind));
    return "[Unsupported " + kind + "]";
  }

  std::string tools() const {
    const JsonValue* v = field("tools");
    if (!v) return "";
    if (!v->is(Kind::array)) refuse("tools", *v, "a list");
    for (size_t i = 0; i < v->items.size(); ++i) {
      const JsonValue* function = v->items[i].find("function");
      if (!function || !function->is(Kind::object)) fail("{}.tools[{}] has no \"function\" object", place_, i);
    }
    return write_json(*v);
  }

  ToolCall call(const JsonValue& v, const std::string& place) const {
    const JsonValue* function = v.find("function");
    if (!function || !function->is(Kind::object)) fail("{} has no \"function\" object", place);
    ToolCall out;
    for (const JsonValue* holder : {function, &v})  // the id of the call itself counts before that of the function
      if (const JsonValue* id = holder->find("id"); id && !id->is(Kind::null)) {
        if (!id->is(Kind::string)) fail("{}.id is {}, not text", place, name_of(id->kind));
        if (!id->text.empty()) out.id = id->text;
      }
    const JsonValue* name = function->find("name");
    if (!name || !name->is(Kind::string) || name->text.empty()) fail("{}.function has no name", place);
    out.name = name->text;
    const JsonValue* arguments = function->find("arguments");
    if (!arguments) fail("{}.function has no arguments", place);
    if (arguments->is(Kind::string)) {
      out.arguments = arguments->text;
    } else {
      out.arguments = write_json(*arguments);
      out.arguments_are_value = !(reading_.argument_objects_as_text && arguments->is(Kind::object));
    }
    return out;
  }

  const JsonValue& v_;
  std::string place_;
  const MessageReading& reading_;
};

}  // namespace

std::vector<Message> messages_from_value(const JsonValue& list, std::string_view where, const MessageReading& reading) {
  if (!list.is(Kind::array)) fail("{} is {}, not a list", where, name_of(list.kind));
  std::vector<Message> out;
  for (size_t i = 0; i < list.items.size(); ++i)
    out.push_back(MessageReader(list.items[i], fmt::format("{}[{}]", where, i), reading).read());
  return out;
}

std::vector<Message> messages_from_json(std::string_view json, std::string_view where, const MessageReading& reading) {
  const JsonReading document = read_json(json);
  if (!document.value) fail("{} is not valid JSON: {}", where, document.error);
  if (document.lone_surrogate) fail("{}: a \\u escape is half a surrogate pair", where);
  return messages_from_value(*document.value, where, reading);
}

}  // namespace fathom::text
