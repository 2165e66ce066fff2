// The whole analysis as JSON. The schema is documented in docs/trace-json.md; "schema" in the document names it.
#pragma once

#include <string>
#include <vector>

#include "trace/analysis.h"

namespace fathom::trace {

/// {"schema": "fathom-trace-1", "traces": [...]}, indented, ending with a newline. All times are integer nanoseconds.
std::string json_report(const std::vector<Analysis>& analyses);

}  // namespace fathom::trace
