// The report for a terminal: the answer first (one sentence), then the ranking, categories, devices and what the
// reader has to say about the file. Nothing is wider than the terminal.
#pragma once

#include <string>

#include "trace/analysis.h"

namespace fathom::trace {

struct TextOptions {
  size_t width = 100;  // columns, at least 60
  size_t top = 15;     // rows of the ranking; the rest is summed in one row
  bool bold = false;   // ANSI emphasis
};

std::string text_report(const Analysis& analysis, const TextOptions& options = {});

/// The one sentence that answers "where did the time go": used by every report.
std::string headline(const Analysis& analysis);

/// Sentences on the quality of the data: damage, what was left out and how often, missing parts.
std::vector<std::string> import_sentences(const Trace& trace);

}  // namespace fathom::trace
