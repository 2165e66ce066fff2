// The report as one HTML file that needs nothing else: style, scripts (uPlot and the report's own) and data lie in it,
// and its content security policy forbids it to load anything.
//
// The data is the document of json_report.h, so the page shows the same numbers, plus what only the page needs
// (timeline, steps to plot, readable names). It stands in a <script type="application/json"> with every '<' escaped;
// scripts put texts of the trace on the page as text only.
#pragma once

#include <string>
#include <vector>

#include "trace/analysis.h"

namespace fathom::trace {

/// Bounds of the file's size. What they cut is told on the page.
struct HtmlLimits {
  size_t timeline_events = 20'000;  // in one view of the timeline; several traces share four times as many
  size_t ranking_rows = 2'000;      // of one trace; the rest is summed in one row
  size_t list_entries = 200;        // of any other list: devices, streams, rows of the file, categories of the file
  size_t steps = 4'000;             // points of the steps plot
  size_t name_bytes = 4'000;        // of one text
};

/// `document` is what json_report() gives for the same analyses.
std::string html_report(const std::vector<Analysis>& analyses, const std::string& document,
                        const HtmlLimits& limits = {});

}  // namespace fathom::trace
