// Files that are built into the binary (CMake: fathom_embed).
#pragma once

#include <string_view>

namespace fathom::embedded {

std::string_view bench_page_js();

}  // namespace fathom::embedded
