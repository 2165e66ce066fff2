// Files that are built into the binary (CMake: fathom_embed).
#pragma once

#include <string_view>

namespace fathom::embedded {

std::string_view html_uplot_js();
std::string_view html_uplot_css();
std::string_view html_page_css();
std::string_view html_common_js();

}  // namespace fathom::embedded
