#include "serve/messages_content.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "serve/sampling_fields.h"

namespace fathom::serve {
namespace {

using text::JsonValue;
using Kind = JsonValue::Kind;

void add_text(std::string& out, std::string_view text) {
  if (!out.empty()) out += "\n\n";
  out += text;
}

/// One message after the other.
class ConversationReader {
 public:
  explicit ConversationReader(std::vector<std::string>& warnings) : warnings_(warnings) {}

  void system(Fields& fields) {
    const JsonValue* v = fields.find("system");
    if (!v) return;
    if (const std::string text = plain_text(*v, "system", false); !text.empty()) system_text(text);
  }

  void message(const JsonValue& v, const std::string& place) {
    if (!v.is(Kind::object)) refuse(place, fmt::format("is {}, it must be an object", kind_of(v)));
    Fields fields(v, place + ".");
    const std::string role = fields.text("role").value_or("");
    if (role != "user" && role != "assistant" && role != "system")
      fields.refuse("role", R"(must be "user" or "assistant")");
    if (role == "assistant" && (out_.empty() || (out_.size() == 1 && out_.front().role == "system")))
      fields.refuse("role", "is \"assistant\": the first message must be the user's");
    const JsonValue* content = fields.find("content");
    if (!content) fields.refuse("content", "is missing: it must be text or a list of blocks");
    const std::string where = place + ".content";
    if (role == "system")
      system_text(plain_text(*content, where, false));
    else if (role == "user")
      user(*content, where);
    else
      assistant(*content, where);
    note_unknown(fields);
  }

  std::vector<text::Message> take() {
    if (!out_.empty() && out_.back().role == "assistant") {
      if (!out_.back().tool_calls.empty())
        refuse("messages", "end with a tool_use: a user message with its tool_result must follow");
      out_.back().wo_eos = true;
    }
    if (!unknown_.empty())
      warnings_.push_back(fmt::format("ignored, because not known: {}", fmt::join(unknown_, ", ")));
    return std::move(out_);
  }

 private:
  [[noreturn]] static void refuse(const std::string& place, const std::string& why) {
    throw ApiError(400, "invalid_request_error", place + " " + why, place);
  }

  /// Calls `read` with each block of a list: its type, its fields and its place.
  template <typename Read>
  void blocks(const JsonValue& list, const std::string& place, const Read& read) {
    if (!list.is(Kind::array)) refuse(place, fmt::format("is {}, it must be text or a list of blocks", kind_of(list)));
    for (size_t i = 0; i < list.items.size(); ++i) {
      const std::string at = fmt::format("{}[{}]", place, i);
      if (!list.items[i].is(Kind::object))
        refuse(at, fmt::format("is {}, it must be an object", kind_of(list.items[i])));
      Fields fields(list.items[i], at + ".");
      const auto type = fields.text("type");
      if (!type) fields.refuse("type", "is missing");
      fields.ignore({"cache_control"});  // prefixes are cached without being told to
      read(*type, fields, at);
      note_unknown(fields);
    }
  }

  static std::string text_of(Fields& fields, const char* name = "text") {
    const auto text = fields.text(name);
    if (!text) fields.refuse(name, "is missing");
    fields.ignore({"citations"});
    return *text;
  }

  /// Text or a list of text blocks. In a tool result other blocks become "[Unsupported TYPE]", as in the official
  /// encoding; elsewhere they are refused.
  std::string plain_text(const JsonValue& v, const std::string& place, bool tool_result) {
    if (v.is(Kind::string)) return v.text;
    std::string out;
    blocks(v, place, [&](const std::string& type, Fields& fields, const std::string& at) {
      if (type == "text") return add_text(out, text_of(fields));
      if (!tool_result) refuse(at, fmt::format("is a block of type {}: only text is supported", printable(type)));
      add_text(out, "[Unsupported " + printable(type, 40) + "]");
      warnings_.push_back(fmt::format("{}: the model cannot see a block of type {}", at, printable(type, 40)));
      fields.ignore({"source", "title", "context", "content"});
    });
    return out;
  }

  void system_text(const std::string& text) {
    if (out_.empty() || out_.back().role != "system") out_.push_back({.role = "system"});
    add_text(out_.back().content, text);
  }

  void user(const JsonValue& content, const std::string& place) {
    text::Message text{.role = "user"};
    bool has_text = false;
    const auto flush = [&] {
      if (std::exchange(has_text, false)) out_.push_back(std::exchange(text, text::Message{.role = "user"}));
    };
    if (content.is(Kind::string)) {
      text.content = content.text, has_text = true;
      return flush();
    }
    if (content.is(Kind::array) && content.items.empty()) refuse(place, "is empty");
    blocks(content, place, [&](const std::string& type, Fields& fields, const std::string& at) {
      if (type == "text") {
        add_text(text.content, text_of(fields));
        has_text = true;
      } else if (type == "tool_result") {
        flush();
        tool_result(fields, at);
      } else {
        refuse(at, fmt::format("is a block of type {}: user messages may hold text and tool_result", printable(type)));
      }
    });
    flush();
  }

  void tool_result(Fields& fields, const std::string& place) {
    text::Message m{.role = "tool"};
    m.tool_call_id = fields.text("tool_use_id").value_or("");
    if (calls_.find(m.tool_call_id) == calls_.end())
      fields.refuse("tool_use_id",
                    fmt::format("is {}: no message before has a tool_use with this id", printable(m.tool_call_id)));
    if (const JsonValue* content = fields.find("content")) m.content = plain_text(*content, place + ".content", true);
    if (fields.boolean("is_error").value_or(false)) m.content.insert(0, "Error: ");
    out_.push_back(std::move(m));
  }

  void assistant(const JsonValue& content, const std::string& place) {
    if (out_.back().role != "assistant") out_.push_back({.role = "assistant"});
    text::Message& m = out_.back();
    if (content.is(Kind::string)) return add_text(m.content, content.text);
    blocks(content, place, [&](const std::string& type, Fields& fields, const std::string& at) {
      if (type == "text") {
        if (!m.tool_calls.empty())
          warnings_.push_back(at + ": the text is placed before the tool_use blocks of its message");
        add_text(m.content, text_of(fields));
      } else if (type == "thinking") {
        add_text(m.reasoning_content, text_of(fields, "thinking"));
        fields.ignore({"signature"});
      } else if (type == "redacted_thinking") {
        warnings_.push_back(at + ": redacted thinking cannot be read and is left out");
        fields.ignore({"data"});
      } else if (type == "tool_use") {
        tool_use(m, fields);
      } else {
        refuse(at, fmt::format("is a block of type {}: assistant messages may hold text, thinking and tool_use",
                               printable(type)));
      }
    });
  }

  void tool_use(text::Message& m, Fields& fields) {
    text::ToolCall call;
    call.id = fields.text("id").value_or("");
    if (call.id.empty()) fields.refuse("id", "is missing");
    call.name = fields.text("name").value_or("");
    if (call.name.empty()) fields.refuse("name", "is missing");
    const JsonValue* input = fields.object("input");
    if (!input) fields.refuse("input", "is missing: it must be an object");
    call.arguments = text::write_json(*input);
    calls_.insert(call.id);
    m.tool_calls.push_back(std::move(call));
    fields.ignore({"caller"});
  }

  /// Places without numbers, so that a long conversation names a field once.
  void note_unknown(const Fields& fields) {
    for (std::string name : fields.unknown()) {
      for (size_t at = name.find('['); at != name.npos; at = name.find('[', at + 1))
        name.erase(at + 1, name.find(']', at) - at - 1);
      if (unknown_.size() < 20) unknown_.insert(std::move(name));
    }
  }

  std::vector<std::string>& warnings_;
  std::vector<text::Message> out_;
  std::set<std::string> calls_;    // ids of all tool_use blocks so far
  std::set<std::string> unknown_;  // fields that nobody has read
};

JsonValue function_of(const JsonValue& tool, const std::string& place, std::vector<std::string>& warnings) {
  if (!tool.is(Kind::object))
    throw ApiError(400, "invalid_request_error", fmt::format("{} is {}, it must be an object", place, kind_of(tool)),
                   place);
  Fields fields(tool, place + ".");
  if (const auto type = fields.text("type"); type && *type != "custom")
    fields.refuse("type", fmt::format("is {}: only tools that the client runs (type \"custom\") are supported",
                                      printable(*type)));
  const std::string name = fields.text("name").value_or("");
  if (name.empty()) fields.refuse("name", "is missing");
  const JsonValue* schema = fields.object("input_schema");
  if (!schema) fields.refuse("input_schema", "is missing: it must be a JSON schema");
  JsonValue function;
  function.kind = Kind::object;
  function.members.emplace_back("name", text_value(name));
  if (const auto description = fields.text("description"))
    function.members.emplace_back("description", text_value(*description));
  function.members.emplace_back("parameters", *schema);
  if (fields.boolean("strict").value_or(false)) warnings.push_back(place + ": strict is not enforced");
  fields.ignore({"cache_control", "eager_input_streaming"});
  warn_of_unknown(fields, warnings);

  JsonValue out;
  out.kind = Kind::object;
  out.members.emplace_back("type", text_value("function"));
  out.members.emplace_back("function", std::move(function));
  return out;
}

}  // namespace

std::vector<text::Message> read_anthropic_messages(Fields& fields, std::vector<std::string>& warnings) {
  ConversationReader reader(warnings);
  reader.system(fields);
  const JsonValue* list = fields.find("messages");
  if (!list) fields.refuse("messages", "is missing: it must be a list of messages");
  if (!list->is(Kind::array)) fields.refuse("messages", fmt::format("is {}, it must be a list", kind_of(*list)));
  if (list->items.empty()) fields.refuse("messages", "is empty: at least one message is needed");
  for (size_t i = 0; i < list->items.size(); ++i) reader.message(list->items[i], fmt::format("messages[{}]", i));
  return reader.take();
}

JsonValue read_anthropic_tools(Fields& fields, std::vector<std::string>& warnings) {
  JsonValue out;
  out.kind = Kind::array;
  const JsonValue* tools = fields.find("tools");
  if (!tools) return out;
  if (!tools->is(Kind::array)) fields.refuse("tools", fmt::format("is {}, it must be a list", kind_of(*tools)));
  for (size_t i = 0; i < tools->items.size(); ++i)
    out.items.push_back(function_of(tools->items[i], fmt::format("tools[{}]", i), warnings));
  return out;
}

}  // namespace fathom::serve
