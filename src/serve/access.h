// Who may use the server: API keys and browser origins.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "serve/http.h"

namespace fathom::serve {

/// Compares in a time that depends on the lengths alone.
bool same_secret(std::string_view given, std::string_view secret);

class Access {
 public:
  Access(std::vector<std::string> keys, std::vector<std::string> origins, bool loopback);

  /// True when no key is needed or the request brings one ("authorization: Bearer KEY" or "x-api-key: KEY").
  bool key_ok(const HttpRequest& request) const;

  /// Whose requests share their turns: the key where keys are asked for; else the client's address, and what it calls
  /// its `user`.
  std::string client_of(const HttpRequest& request, std::string_view user) const;

  enum class Origin {
    none,     // no browser, or a page of this server
    allowed,  // a page of another origin that was named
    refused,
  };
  /// Browsers send requests of any page to any server. Only those of named origins and of this server's own pages are
  /// served. "Own" is what the Host header says; without keys that must be a loopback name, or a page could point its
  /// own name to this machine.
  Origin origin_of(const HttpRequest& request) const;

 private:
  /// The key that a request brings; empty: none.
  static std::string_view given_key(const HttpRequest& request);

  std::vector<std::string> keys_, origins_;
  bool loopback_;
};

/// True for 127.0.0.0/8, ::1 and localhost.
bool is_loopback(std::string_view host);

}  // namespace fathom::serve
