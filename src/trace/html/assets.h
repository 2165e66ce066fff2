// The parts of the HTML report that are built into the binary (CMake: fathom_embed).
#pragma once

#include <string_view>

namespace fathom::embedded {

std::string_view html_uplot_js();
std::string_view html_uplot_css();
std::string_view html_report_css();
std::string_view html_common_js();
std::string_view html_ranking_js();
std::string_view html_timeline_js();
std::string_view html_sections_js();
std::string_view html_comparison_js();
std::string_view html_page_js();

}  // namespace fathom::embedded
