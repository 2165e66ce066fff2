// The members of a JSON request, read one by one with their types and ranges checked. What nobody asked for is listed,
// so that it can be named to the client.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "serve/api.h"
#include "text/json.h"

namespace fathom::serve {

/// The body as a JSON object. Throws ApiError (400) when it is not one.
text::JsonValue read_body(const HttpRequest& request);

class Fields {
 public:
  /// `object` outlives this. `where` stands before names in messages: "" or "stream_options.".
  explicit Fields(const text::JsonValue& object, std::string where = "") : object_(object), where_(std::move(where)) {}

  /// The member; nullptr when it is missing or null.
  const text::JsonValue* find(std::string_view name);
  std::optional<std::string> text(std::string_view name);
  std::optional<bool> boolean(std::string_view name);
  /// A whole number, however it is spelled (1, 1.0, 1e0).
  std::optional<int64_t> integer(std::string_view name, int64_t low, int64_t high);
  std::optional<double> number(std::string_view name, double low, double high);
  /// Text or a list of texts.
  std::vector<std::string> texts(std::string_view name, size_t most);
  std::vector<int64_t> integers(std::string_view name, size_t most, int64_t low, int64_t high);
  /// An object; its members are not looked at here.
  const text::JsonValue* object(std::string_view name);

  /// Members that may be there and change nothing.
  void ignore(std::initializer_list<std::string_view> names);
  /// Throws ApiError: `name` has a value that is not supported.
  [[noreturn]] void refuse(std::string_view name, const std::string& why) const;
  /// Names (with `where`) of the members that were neither read nor ignored; at most 20 of them.
  std::vector<std::string> unknown() const;

 private:
  const text::JsonValue& object_;
  std::string where_;
  std::set<std::string, std::less<>> seen_;
};

/// A JSON text.
text::JsonValue text_value(std::string text);

/// "null", "text", "a list"...
const char* kind_of(const text::JsonValue& value);

/// `value` as a number; nothing when it is none or not finite.
std::optional<double> number_of(const text::JsonValue& value);

}  // namespace fathom::serve
