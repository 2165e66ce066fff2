// The web page at "/": chat and a live view, as files that are built into the binary.
#pragma once

#include <string_view>
#include <vector>

#include "serve/api.h"

namespace fathom::serve {

std::vector<RouteEntry> web_routes();

/// Whether `path` is of the page, which comes without a key: it asks the user for one.
bool is_web_path(std::string_view path);

}  // namespace fathom::serve
