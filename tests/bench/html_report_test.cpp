// The HTML report of a load test: one file that loads nothing and shows texts as texts. What a browser makes of it is
// checked by html_browser.sh.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "bench/embedded.h"
#include "bench/sweep.h"

namespace fathom::bench {
namespace {

/// `open` streams that follow each other for `rounds` rounds, a piece every `step` seconds.
LevelRun run_of(int open, int rounds, double step, int pieces = 20) {
  LevelRun run;
  run.concurrency = open;
  for (int round = 0; round < rounds; ++round)
    for (int i = 0; i < open; ++i) {
      RequestRecord r;
      r.due = r.sent = round * step * (pieces + 1);
      for (int p = 1; p <= pieces; ++p) r.pieces.push_back(r.sent + p * step);
      r.end = r.pieces.back() + step / 2;
      r.prompt_tokens = 64, r.output_tokens = pieces, r.finish = "length";
      run.requests.push_back(r);
    }
  return run;
}

Sweep sweep_of(const std::string& target) {
  Sweep s;
  s.target = target, s.content = "prose", s.started = "2026-01-01 00:00 UTC";
  std::vector<LevelStats> all;
  for (const int open : {1, 2, 4}) {
    Level level{static_cast<double>(open), 0, {analyse(run_of(open, 3, 0.01 + 0.002 * open))}};
    all.push_back(level.repeats.front());
    s.levels.push_back(level);
  }
  s.fit = fit_step_time(all);
  return s;
}

size_t count_of(const std::string& text, std::string_view part) {
  size_t n = 0;
  for (size_t at = 0; (at = text.find(part, at)) != text.npos; at += part.size()) ++n;
  return n;
}

TEST(BenchHtml, HoldsEverythingAndLoadsNothing) {
  std::string page = html_report(sweep_of("a server"));
  const size_t notice = page.find("https://github.com/leeoniya/uPlot");  // the licence notice, a comment
  ASSERT_NE(notice, std::string::npos);
  page.erase(notice, 33);
  for (const char* part : {"http:", "https:", "src=", "@import", "url(", "fetch(", "XMLHttpRequest", "<link", "<img"})
    EXPECT_EQ(count_of(page, part), 0u) << part;
  EXPECT_NE(page.find("default-src 'none'"), std::string::npos);
  EXPECT_NE(page.find("<title>fathom bench: a server</title>"), std::string::npos);
  EXPECT_NE(page.find("\"asymptote_tokens_per_second\""), std::string::npos);
}

TEST(BenchHtml, HostileTextsStayText) {
  Sweep s = sweep_of("</script><img src=x onerror=alert(1)><!--");
  s.levels.front().repeats.front().errors = 1;
  s.levels.front().repeats.front().first_errors = {"<script>alert(2)</script>"};
  const std::string page = html_report(s);
  EXPECT_EQ(count_of(page, "<script"), 3u);
  EXPECT_EQ(count_of(page, "</script"), 3u);
  EXPECT_EQ(count_of(page, "<img"), 0u);
  EXPECT_EQ(count_of(page, "<!--"), 0u);
}

TEST(BenchHtml, ItsOwnScriptPutsTextsOnThePageAsTextOnly) {
  for (const char* part :
       {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "</"})
    EXPECT_EQ(embedded::bench_page_js().find(part), std::string_view::npos) << part;
}

TEST(BenchHtml, ASweepWithoutAnswersHasAPageToo) {
  Sweep s;
  s.target = "nobody", s.content = "prose";
  EXPECT_NE(html_report(s).find("</html>"), std::string::npos);
  LevelRun run;
  run.concurrency = 1;
  RequestRecord failed;
  failed.error = "HTTP 500", failed.end = 1;
  run.requests.push_back(failed);
  s.levels.push_back({1, 0, {analyse(run)}});
  s.fit = fit_step_time({s.levels.front().repeats.front()});
  EXPECT_NE(html_report(s).find("</html>"), std::string::npos);
}

TEST(Timeline, AddsUpToTheTokensAndTheOpenTimeOfTheRun) {
  const LevelRun run = run_of(4, 3, 0.01);
  const Timeline t = timeline_of(run, 50);
  ASSERT_EQ(t.open.size(), 50u);
  const double tokens = std::accumulate(t.output_rate.begin(), t.output_rate.end(), 0.0) * t.width;
  EXPECT_NEAR(tokens, 4 * 3 * 20, 0.01);
  double open = 0;
  for (const RequestRecord& r : run.requests) open += r.end - r.sent;
  EXPECT_NEAR(std::accumulate(t.open.begin(), t.open.end(), 0.0) * t.width, open, 1e-3);
  EXPECT_LE(*std::max_element(t.open.begin(), t.open.end()), 4.001f);
  EXPECT_TRUE(timeline_of(LevelRun{}).open.empty());
}

TEST(Quantiles, CurveRunsFromTheLeastToTheMost) {
  const Quantiles q = quantiles({3, 1, 2, 5, 4});
  ASSERT_EQ(q.curve.size(), 101u);
  EXPECT_FLOAT_EQ(q.curve.front(), 1);
  EXPECT_FLOAT_EQ(q.curve[50], 3);
  EXPECT_FLOAT_EQ(q.curve.back(), 5);
  EXPECT_TRUE(std::is_sorted(q.curve.begin(), q.curve.end()));
}

}  // namespace
}  // namespace fathom::bench
