// The parts of the HTML report that are built into the binary (CMake: fathom_embed).
#pragma once

#include <string_view>

namespace fathom::embedded {

std::string_view trace_kernels_js();
std::string_view trace_ranking_js();
std::string_view trace_timeline_js();
std::string_view trace_sections_js();
std::string_view trace_comparison_js();
std::string_view trace_page_js();

}  // namespace fathom::embedded
