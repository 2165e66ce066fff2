// Everything that was examined, and how it is written: for a terminal, as Markdown, as JSON.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "doctor/checks.h"
#include "doctor/server.h"
#include "doctor/verdict.h"

namespace fathom::doctor {

struct Report {
  std::string version, time;  // time: UTC
  Machine machine;
  NvmlReport nvml;
  std::optional<Rates> rates;
  std::optional<DiskRate> disk;
  std::optional<ServerReport> server;
  std::vector<Verdict> verdicts;
  std::vector<std::string> judged_without;  // why there is no bound, or no trace
  std::vector<Check> checks;                // all of them, in the order of the report

  size_t count(Level level) const;
};

std::string text_report(const Report& r);
std::string markdown_report(const Report& r);
/// Schema "fathom-doctor-1" (docs/doctor.md), ends with a newline.
std::string json_report(const Report& r);

}  // namespace fathom::doctor
