#include "serve/api.h"

#include "serve/openai_json.h"

namespace fathom::serve {

std::string openai_error(const ApiError& error) {
  std::string out = R"({"error":{"message":)";
  append_quoted(out, error.what());
  out += R"(,"type":)";
  append_quoted(out, error.type);
  for (const auto& [name, value] :
       {std::pair<const char*, const std::string&>{R"(,"param":)", error.param}, {R"(,"code":)", error.code}}) {
    out += name;
    if (value.empty())
      out += "null";
    else
      append_quoted(out, value);
  }
  return out + "}}";
}

ApiError error_of(const Failure& failure) {
  switch (failure.reason) {
    case EndReason::rejected:
      return ApiError(400, "invalid_request_error", failure.message);
    case EndReason::deadline:
      return ApiError(504, "timeout_error", failure.message, "", "timeout");
    case EndReason::shutdown:
      return ApiError(503, "server_error", failure.message, "", "shutdown", 5);
    default:
      return ApiError(500, "server_error", failure.message.empty() ? "the request was ended" : failure.message);
  }
}

}  // namespace fathom::serve
