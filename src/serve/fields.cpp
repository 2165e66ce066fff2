#include "serve/fields.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

namespace fathom::serve {
namespace {

using text::JsonValue;
using Kind = JsonValue::Kind;

/// `value` as a whole number in [low, high].
std::optional<int64_t> integer_of(const JsonValue& value, int64_t low, int64_t high) {
  if (!value.is(Kind::number)) return std::nullopt;
  int64_t whole = 0;
  const char* end = value.text.data() + value.text.size();
  if (const auto r = std::from_chars(value.text.data(), end, whole); r.ec != std::errc{} || r.ptr != end) {
    const auto number = number_of(value);  // "1.0", "1e3": exact below 2^53
    if (!number || std::floor(*number) != *number || std::abs(*number) > 9007199254740992.0) return std::nullopt;
    whole = static_cast<int64_t>(*number);
  }
  if (whole < low || whole > high) return std::nullopt;
  return whole;
}

}  // namespace

JsonValue text_value(std::string text) {
  JsonValue v;
  v.kind = Kind::string, v.text = std::move(text);
  return v;
}

const char* kind_of(const JsonValue& value) {
  constexpr const char* kNames[] = {"null", "true or false", "a number", "text", "a list", "an object"};
  return kNames[static_cast<int>(value.kind)];
}

std::optional<double> number_of(const JsonValue& value) {
  if (!value.is(Kind::number)) return std::nullopt;
  double number = 0;
  const char* end = value.text.data() + value.text.size();
  const auto r = std::from_chars(value.text.data(), end, number);
  if (r.ec != std::errc{} || r.ptr != end || !std::isfinite(number)) return std::nullopt;
  return number;
}

JsonValue read_body(const HttpRequest& request) {
  if (request.body.empty())
    throw ApiError(400, "invalid_request_error", "the request has no body: it must be a JSON object");
  text::JsonReading reading = text::read_json(request.body);
  if (!reading.value) throw ApiError(400, "invalid_request_error", "the body is not valid JSON: " + reading.error);
  if (reading.lone_surrogate)
    throw ApiError(400, "invalid_request_error",
                   "the body holds half a surrogate pair (a \\ud800 to \\udfff escape without its other half)");
  if (!reading.value->is(Kind::object))
    throw ApiError(400, "invalid_request_error",
                   fmt::format("the body is {}, it must be a JSON object", kind_of(*reading.value)));
  return std::move(*reading.value);
}

void Fields::refuse(std::string_view name, const std::string& why) const {
  throw ApiError(400, "invalid_request_error", fmt::format("{}{} {}", where_, name, why), where_ + std::string(name));
}

const JsonValue* Fields::find(std::string_view name) {
  seen_.emplace(name);
  const JsonValue* v = object_.find(name);
  return v && !v->is(Kind::null) ? v : nullptr;
}

std::optional<std::string> Fields::text(std::string_view name) {
  const JsonValue* v = find(name);
  if (!v) return std::nullopt;
  if (!v->is(Kind::string)) refuse(name, fmt::format("is {}, it must be text", kind_of(*v)));
  return v->text;
}

std::optional<bool> Fields::boolean(std::string_view name) {
  const JsonValue* v = find(name);
  if (!v) return std::nullopt;
  if (!v->is(Kind::boolean)) refuse(name, fmt::format("is {}, it must be true or false", kind_of(*v)));
  return v->truth;
}

std::optional<int64_t> Fields::integer(std::string_view name, int64_t low, int64_t high) {
  const JsonValue* v = find(name);
  if (!v) return std::nullopt;
  const auto value = integer_of(*v, low, high);
  if (!value)
    refuse(name, fmt::format("is {}, it must be a whole number from {} to {}",
                             v->is(Kind::number) ? printable(v->text, 40) : kind_of(*v), low, high));
  return value;
}

std::optional<double> Fields::number(std::string_view name, double low, double high) {
  const JsonValue* v = find(name);
  if (!v) return std::nullopt;
  const auto value = number_of(*v);
  if (!value || *value < low || *value > high)
    refuse(name, fmt::format("is {}, it must be a number from {} to {}",
                             v->is(Kind::number) ? printable(v->text, 40) : kind_of(*v), low, high));
  return value;
}

std::vector<std::string> Fields::texts(std::string_view name, size_t most) {
  const JsonValue* v = find(name);
  if (!v) return {};
  if (v->is(Kind::string)) return {v->text};
  if (!v->is(Kind::array)) refuse(name, fmt::format("is {}, it must be text or a list of texts", kind_of(*v)));
  if (v->items.size() > most)
    refuse(name, fmt::format("has {} entries, at most {} are possible", v->items.size(), most));
  std::vector<std::string> out;
  for (const JsonValue& item : v->items) {
    if (!item.is(Kind::string)) refuse(name, fmt::format("holds {}, all entries must be text", kind_of(item)));
    out.push_back(item.text);
  }
  return out;
}

std::vector<int64_t> Fields::integers(std::string_view name, size_t most, int64_t low, int64_t high) {
  const JsonValue* v = find(name);
  if (!v) return {};
  if (!v->is(Kind::array)) refuse(name, fmt::format("is {}, it must be a list of numbers", kind_of(*v)));
  if (v->items.size() > most)
    refuse(name, fmt::format("has {} entries, at most {} are possible", v->items.size(), most));
  std::vector<int64_t> out;
  for (const JsonValue& item : v->items) {
    const auto value = integer_of(item, low, high);
    if (!value) refuse(name, fmt::format("holds something that is not a whole number from {} to {}", low, high));
    out.push_back(*value);
  }
  return out;
}

const JsonValue* Fields::object(std::string_view name) {
  const JsonValue* v = find(name);
  if (v && !v->is(Kind::object)) refuse(name, fmt::format("is {}, it must be an object", kind_of(*v)));
  return v;
}

void Fields::ignore(std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) seen_.emplace(name);
}

std::vector<std::string> Fields::unknown() const {
  std::vector<std::string> out;
  for (const auto& member : object_.members) {
    if (seen_.find(member.name) != seen_.end()) continue;
    if (out.size() == 20) {
      out.push_back("...");
      break;
    }
    out.push_back(where_ + printable(member.name, 40));
  }
  return out;
}

}  // namespace fathom::serve
