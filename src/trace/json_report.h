// The whole analysis as JSON. The schema is documented in docs/trace-json.md; "schema" in the document names it.
#pragma once

#include <string>
#include <vector>

#include "trace/analysis.h"
#include "trace/diff.h"
#include "trace/ranks.h"

namespace fathom::trace {

/// {"schema": "fathom-trace-1", "traces": [...]}, indented, ending with a newline. All times are integer nanoseconds.
/// `diff` and `ranks` may be null.
std::string json_report(const std::vector<Analysis>& analyses, const TraceDiff* diff = nullptr,
                        const RankComparison* ranks = nullptr);

}  // namespace fathom::trace
