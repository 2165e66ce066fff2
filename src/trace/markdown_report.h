// The report as a section of a Markdown file.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "trace/analysis.h"

namespace fathom::trace {

/// A section for each analysis, headed with `date` ("2026-11-29"). Names are escaped, so that a kernel's name can
/// neither open a link nor break a table.
std::string markdown_report(const std::vector<Analysis>& analyses, const std::string& date);

/// Appends markdown_report() with today's date to `path`, which is created when missing and otherwise kept.
void append_markdown(const std::filesystem::path& path, const std::vector<Analysis>& analyses);

}  // namespace fathom::trace
