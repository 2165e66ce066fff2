// The address of a server, and single requests to it.
#pragma once

#include <string>

namespace fathom::bench {

struct Address {
  std::string host, port, prefix;  // prefix: path in front of /v1
  /// This machine.
  bool is_local() const { return host == "localhost" || host == "::1" || host.starts_with("127."); }
};

/// "http://HOST:PORT", with or without a path and "/v1". Throws Error.
Address parse_url(const std::string& url);

struct HttpCall {
  std::string url;  // of the server
  std::string method = "GET", path = "/";
  std::string body;     // JSON; empty: none
  std::string api_key;  // empty: none is sent
  double timeout = 30;  // seconds, for all of it
};
struct HttpAnswer {
  int status = 0;
  std::string body;
};
/// Throws Error when there is no answer.
HttpAnswer http_call(const HttpCall& call);

}  // namespace fathom::bench
