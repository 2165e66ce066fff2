#include "html/page.h"

#include <fmt/format.h>

#include "base/fnv.h"
#include "html/embedded.h"

namespace fathom::html {
namespace {

/// JSON for a script element: without '<' no text can end the element or open a comment.
std::string script_data(std::string_view json) {
  std::string out;
  out.reserve(json.size() + 1024);
  for (const char c : json) {
    if (c == '<')
      out += "\\u003c";
    else
      out += c;
  }
  return out;
}

/// For the content security policy: scripts without this word do not run. Taken from the content.
std::string nonce_of(std::string_view data) {
  return fmt::format("{:016x}", fnv1a(data));
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else if (c == '"')
      out += "&quot;";
    else if (c == '\'')
      out += "&#39;";
    else
      out += c;
  }
  return out;
}

std::string page(const Page& page) {
  const std::string data = script_data(page.data);
  const std::string nonce = nonce_of(data);
  std::string out;
  out.reserve(data.size() + (size_t{200} << 10));
  out += "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n";
  out += fmt::format(
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'nonce-{0}'; "
      "style-src 'nonce-{0}'; base-uri 'none'; form-action 'none'\">\n",
      nonce);
  out += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
  out += "<meta name=\"color-scheme\" content=\"light dark\">\n";
  out += fmt::format("<title>{}</title>\n", escaped(page.title));
  out += fmt::format("<style nonce=\"{}\">\n{}\n{}\n</style>\n</head>\n<body>\n", nonce, embedded::html_uplot_css(),
                     embedded::html_page_css());
  out += "<main id=\"report\"></main>\n<noscript><div class=\"plain\">\n" + page.plain + "</div></noscript>\n";
  out += "<script type=\"application/json\" id=\"data\">" + data + "</script>\n";
  out += fmt::format("<script nonce=\"{}\">\n{}\n</script>\n", nonce, embedded::html_uplot_js());
  out += fmt::format("<script nonce=\"{}\">\n(() => {{\n'use strict';\n{}", nonce, embedded::html_common_js());
  for (const std::string_view script : page.scripts) {
    out += "\n";
    out += script;
  }
  out += "\n})();\n</script>\n</body>\n</html>\n";
  return out;
}

}  // namespace fathom::html
