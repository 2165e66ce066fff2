// Files that are built into the binary (CMake: fathom_embed).
#pragma once

#include <string_view>

namespace fathom::embedded {

std::string_view web_index_html();
std::string_view web_style_css();
std::string_view web_page_js();
std::string_view web_chat_js();
std::string_view web_live_js();
std::string_view web_api_js();

}  // namespace fathom::embedded
