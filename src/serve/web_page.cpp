#include "serve/web_page.h"

#include <algorithm>
#include <iterator>

#include "serve/embedded.h"

namespace fathom::serve {
namespace {

struct WebFile {
  const char* path;
  const char* type;
  std::string_view (*text)();
};

constexpr const char* kScript = "text/javascript; charset=utf-8";
constexpr WebFile kFiles[] = {{"/", "text/html; charset=utf-8", embedded::web_index_html},
                              {"/web/style.css", "text/css; charset=utf-8", embedded::web_style_css},
                              {"/web/page.js", kScript, embedded::web_page_js},
                              {"/web/chat.js", kScript, embedded::web_chat_js},
                              {"/web/live.js", kScript, embedded::web_live_js},
                              {"/web/api.js", kScript, embedded::web_api_js}};

void send(const WebFile& file, Exchange& exchange) {
  // Nothing from elsewhere is loaded, and no other page may show this one.
  exchange.add_header(
      "content-security-policy",
      "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'; "
      "base-uri 'none'; form-action 'none'");
  exchange.add_header("x-content-type-options", "nosniff");
  exchange.add_header("referrer-policy", "no-referrer");
  exchange.add_header("cache-control", "no-cache");
  exchange.reply(200, file.type, file.text());
}

}  // namespace

std::vector<RouteEntry> web_routes() {
  std::vector<RouteEntry> routes;
  for (const WebFile& file : kFiles)
    routes.push_back(
        {"GET", file.path, [&file](Api&, const std::shared_ptr<Exchange>& e) { send(file, *e); }, "the web page"});
  return routes;
}

bool is_web_path(std::string_view path) {
  return std::any_of(std::begin(kFiles), std::end(kFiles), [&](const WebFile& f) { return path == f.path; });
}

}  // namespace fathom::serve
