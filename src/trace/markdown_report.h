// The report as a section of a Markdown file.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "trace/analysis.h"

namespace fathom::trace {

/// Text safe inside a paragraph or table cell: what Markdown or HTML could take for markup is escaped, control
/// characters are shown as \xNN.
std::string markdown_text(std::string_view text);

/// A section for each analysis, headed with `date` ("2026-11-29"). Names are escaped, so that a kernel's name can
/// neither open a link nor break a table.
std::string markdown_report(const std::vector<Analysis>& analyses, const std::string& date);

/// Today as "2026-11-29".
std::string today();

/// Appends `text` to `path`, which is created when missing and otherwise kept.
void append_markdown(const std::filesystem::path& path, std::string_view text);

}  // namespace fathom::trace
