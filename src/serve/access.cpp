#include "serve/access.h"

#include <fmt/format.h>

#include <algorithm>

namespace fathom::serve {
namespace {

/// The host of "host:port" or "[v6]:port".
std::string_view without_port(std::string_view host) {
  if (host.starts_with('[')) {
    const size_t end = host.find(']');
    return end == std::string_view::npos ? host : host.substr(1, end - 1);
  }
  return host.substr(0, host.find(':'));
}

}  // namespace

bool same_secret(std::string_view given, std::string_view secret) {
  size_t different = given.size() ^ secret.size();
  for (size_t i = 0; i < given.size() && !secret.empty(); ++i)
    different |= static_cast<size_t>(static_cast<unsigned char>(given[i]) ^
                                     static_cast<unsigned char>(secret[i % secret.size()]));
  return different == 0;
}

bool is_loopback(std::string_view host) {
  return host == "localhost" || host == "::1" || host.ends_with(".localhost") ||
         (host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string_view::npos);
}

Access::Access(std::vector<std::string> keys, std::vector<std::string> origins, bool loopback)
    : keys_(std::move(keys)), origins_(std::move(origins)), loopback_(loopback) {}

std::string_view Access::given_key(const HttpRequest& request) {
  std::string_view given = request.header("x-api-key");
  const std::string_view authorization = request.header("authorization");
  constexpr std::string_view kBearer = "bearer ";
  if (authorization.size() > kBearer.size() &&
      std::equal(kBearer.begin(), kBearer.end(), authorization.begin(),
                 [](char a, char b) { return a == (b >= 'A' && b <= 'Z' ? b + 32 : b); }))
    given = authorization.substr(kBearer.size());
  return given;
}

std::string Access::client_of(const HttpRequest& request, std::string_view user) const {
  if (!keys_.empty()) return std::string(given_key(request));
  return fmt::format("{} {}", request.peer, user);
}

bool Access::key_ok(const HttpRequest& request) const {
  if (keys_.empty()) return true;
  const std::string_view given = given_key(request);
  bool good = false;
  for (const std::string& key : keys_) good |= same_secret(given, key);
  return good;
}

Access::Origin Access::origin_of(const HttpRequest& request) const {
  const std::string_view origin = request.header("origin");
  if (origin.empty()) return Origin::none;
  for (const std::string& allowed : origins_)
    if (allowed == "*" || allowed == origin) return Origin::allowed;
  const std::string_view host = request.header("host");
  const bool own =
      origin.ends_with(host) && (origin == "http://" + std::string(host) || origin == "https://" + std::string(host));
  if (own && (!keys_.empty() || !loopback_ || is_loopback(without_port(host)))) return Origin::none;
  return Origin::refused;
}

}  // namespace fathom::serve
