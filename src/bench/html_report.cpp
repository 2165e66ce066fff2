// The report of a sweep as one HTML file: the document of sweep_json.cpp, and what only the page needs (percentile
// curves, timelines).
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "bench/embedded.h"
#include "bench/sweep.h"
#include "html/page.h"

namespace fathom::bench {
namespace {

using Json = nlohmann::ordered_json;

Json page_of(const LevelStats& s) {
  return {{"ttft", s.first_token.curve},
          {"itl", s.gap.curve},
          {"timeline",
           {{"begin", s.timeline.begin},
            {"width", s.timeline.width},
            {"open", s.timeline.open},
            {"rate", s.timeline.output_rate}}},
          {"steady", {s.stretch.begin, s.stretch.end}}};
}

}  // namespace

std::string html_report(const Sweep& s) {
  Json data = Json::parse(json_report(s));
  for (size_t i = 0; i < s.levels.size(); ++i) data["levels"][i]["page"] = page_of(s.levels[i].median());
  if (s.fit.valid) data["step_time_fit"]["center"] = s.fit.center;
  return html::page({.title = "fathom bench: " + printable(s.target, 200),
                     .data = data.dump(-1, ' ', false, Json::error_handler_t::replace),
                     .scripts = {embedded::bench_page_js()},
                     .plain = "<pre>" + html::escaped(text_report(s)) + "</pre>\n"});
}

}  // namespace fathom::bench
