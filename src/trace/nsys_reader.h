// Nsight Systems exports (nsys export --type sqlite).
//
// Tables and columns come and go between versions of nsys, so every table is optional and every column is looked up:
// what is absent counts as not recorded. Rows are judged one by one; a bad one is counted, never the end of the import.
#pragma once

#include <filesystem>

#include "trace/model.h"

namespace fathom::trace {

/// Throws Error when the file is no database, or a database without any table of Nsight Systems.
Trace read_nsys(const std::filesystem::path& path);

}  // namespace fathom::trace
