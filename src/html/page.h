// One self-contained HTML file: style, scripts (uPlot and the caller's) and data lie in it, and its content security
// policy forbids it to load anything. Its data is JSON in a <script type="application/json" id="data"> with every '<'
// escaped; scripts put texts on the page as text only. Light and dark, print and narrow screens: web/page.css.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fathom::html {

/// Text for the inside of an element or of a quoted attribute.
std::string escaped(std::string_view text);

struct Page {
  std::string title;
  std::string data;                       // JSON
  std::vector<std::string_view> scripts;  // behind uPlot and common.js, all in one strict function
  std::string plain;                      // HTML for browsers without scripts
};

/// The same content gives the same file.
std::string page(const Page& page);

}  // namespace fathom::html
