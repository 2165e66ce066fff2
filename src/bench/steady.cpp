#include "bench/steady.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

namespace fathom::bench {
namespace {

struct Change {
  double at;
  int by;
};

/// Sendings and ends in order; at the same time ends come last, so that a replaced request leaves no pause.
std::vector<Change> changes_of(const std::vector<RequestRecord>& requests) {
  std::vector<Change> changes;
  for (const RequestRecord& r : requests) {
    changes.push_back({r.sent, 1});
    changes.push_back({std::max(r.end, r.sent), -1});
  }
  std::sort(changes.begin(), changes.end(),
            [](const Change& a, const Change& b) { return a.at != b.at ? a.at < b.at : a.by > b.by; });
  return changes;
}

double quantile(const std::vector<double>& sorted, double q) {
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (at - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

/// Student's t for a two-sided interval of 95 %.
double student(size_t freedom) {
  constexpr std::array<double, 30> table = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
                                            2.201,  2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
                                            2.080,  2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042};
  return freedom == 0 ? INFINITY : freedom <= table.size() ? table[freedom - 1] : 1.96;
}

/// Tokens and pieces that arrived in [begin, end).
struct Arrivals {
  double tokens = 0, reasoning = 0, pieces = 0;
};

Arrivals arrivals(const std::vector<RequestRecord>& requests, double begin, double end) {
  Arrivals a;
  for (const RequestRecord& r : requests) {
    if (r.pieces.empty()) continue;
    const auto from = std::lower_bound(r.pieces.begin(), r.pieces.end(), begin);
    const auto count = static_cast<double>(std::lower_bound(from, r.pieces.end(), end) - from);
    a.pieces += count;
    a.tokens += count * r.tokens_a_piece();
    a.reasoning += count * static_cast<double>(r.reasoning_tokens) / static_cast<double>(r.pieces.size());
  }
  return a;
}

/// Times of the requests that were sent in the stretch, and gaps in it.
void collect_times(const LevelRun& run, LevelStats& s) {
  std::vector<double> first, gaps, token_time, whole, late;
  double cached = 0, prompts = 0, outputs = 0, counted = 0;
  const Stretch& w = s.stretch;
  for (const RequestRecord& r : run.requests) {
    if (!r.ok()) continue;
    for (size_t i = 1; i < r.pieces.size(); ++i)
      if (r.pieces[i - 1] >= w.begin && r.pieces[i] <= w.end) gaps.push_back(r.pieces[i] - r.pieces[i - 1]);
    if (r.sent < w.begin || r.sent > w.end) continue;
    first.push_back(r.first() - r.sent);
    whole.push_back(r.end - r.sent);
    if (r.tokens() > 1) token_time.push_back((r.last() - r.first()) / (r.tokens() - 1));
    late.push_back(r.sent - r.due);
    outputs += r.tokens(), ++counted;
    prompts += static_cast<double>(std::max<int64_t>(r.prompt_tokens, 0));
    cached += static_cast<double>(r.cached_tokens);
  }
  s.first_token = quantiles(std::move(first));
  s.gap = quantiles(std::move(gaps));
  s.token_time = quantiles(std::move(token_time));
  s.whole = quantiles(std::move(whole));
  s.late = quantiles(std::move(late));
  s.prompt_tokens = counted > 0 ? prompts / counted : 0;
  s.output_tokens = counted > 0 ? outputs / counted : 0;
  s.cached_share = prompts > 0 ? cached / prompts : 0;
}

void collect_rates(const LevelRun& run, LevelStats& s) {
  const Stretch& w = s.stretch;
  double all = 0, begin = INFINITY, end = 0;
  std::vector<double> ends;
  double prompts = 0;
  for (const RequestRecord& r : run.requests) {
    begin = std::min(begin, r.sent), end = std::max(end, r.end);
    if (!r.ok()) continue;
    all += r.tokens();
    if (r.end >= w.begin && r.end <= w.end) ends.push_back(r.end);
    if (r.first() >= w.begin && r.first() < w.end)
      prompts += static_cast<double>(std::max<int64_t>(r.prompt_tokens, 0));
  }
  s.whole_rate = end > begin ? all / (end - begin) : 0;
  s.cpu_a_token = all > 0 ? run.cpu_seconds / all : 0;
  if (w.length() <= 0) return;
  const Arrivals in = arrivals(run.requests, w.begin, w.end);
  s.output_rate = in.tokens / w.length();
  s.reasoning_rate = in.reasoning / w.length();
  s.total_rate = s.output_rate + prompts / w.length();
  s.piece_rate = in.pieces / w.length();
  s.tokens_a_piece = in.pieces > 0 ? in.tokens / in.pieces : 0;
  s.step_time = s.piece_rate > 0 ? w.mean / s.piece_rate : 0;
  std::sort(ends.begin(), ends.end());
  if (ends.size() > 1 && ends.back() > ends.front())
    s.request_rate = static_cast<double>(ends.size() - 1) / (ends.back() - ends.front());
  const double cut = w.begin + w.length() / 5;
  const double early = arrivals(run.requests, w.begin, cut).tokens / (cut - w.begin);
  const double rest = arrivals(run.requests, cut, w.end).tokens / (w.end - cut);
  s.early = rest > 0 ? early / rest : 1;
}

}  // namespace

Quantiles quantiles(std::vector<double> values) {
  Quantiles q;
  q.count = values.size();
  if (values.empty()) return q;
  std::sort(values.begin(), values.end());
  q.p50 = quantile(values, 0.5), q.p90 = quantile(values, 0.9), q.p99 = quantile(values, 0.99);
  for (const double v : values) q.mean += v;
  q.mean /= static_cast<double>(values.size());
  q.most = values.back();
  for (int percent = 0; percent <= 100; ++percent)
    q.curve.push_back(static_cast<float>(quantile(values, percent / 100.0)));
  return q;
}

Timeline timeline_of(const LevelRun& run, size_t pieces) {
  Timeline t;
  double begin = INFINITY, end = -INFINITY;
  for (const RequestRecord& r : run.requests) begin = std::min(begin, r.sent), end = std::max({end, r.end, r.sent});
  if (!(end > begin) || pieces == 0) return t;
  t.begin = begin, t.width = (end - begin) / static_cast<double>(pieces);
  std::vector<double> open(pieces), tokens(pieces);
  const auto piece = [&](double at) { return std::min(pieces - 1, static_cast<size_t>((at - begin) / t.width)); };
  for (const RequestRecord& r : run.requests) {
    for (size_t i = piece(r.sent); i <= piece(std::max(r.end, r.sent)); ++i) {
      const double from = begin + static_cast<double>(i) * t.width;
      open[i] += std::max(0.0, std::min(r.end, from + t.width) - std::max(r.sent, from)) / t.width;
    }
    for (const double at : r.pieces)
      if (at >= begin && at <= end) tokens[piece(at)] += r.tokens_a_piece() / t.width;
  }
  t.open.assign(open.begin(), open.end()), t.output_rate.assign(tokens.begin(), tokens.end());
  return t;
}

Stretch longest_stretch(const std::vector<RequestRecord>& requests, double ratio, double bridge) {
  const std::vector<Change> changes = changes_of(requests);
  Stretch best;
  if (changes.empty()) return best;
  int open = 0, peak = 0;
  for (const Change& c : changes) peak = std::max(peak, open += c.by);
  const double full = std::max(1.0, ratio * peak);
  // Intervals at full load, those with a short pause between them joined.
  std::vector<std::pair<double, double>> full_times;
  open = 0;
  for (size_t i = 0; i < changes.size(); ++i) {
    const bool was = open >= full;
    open += changes[i].by;
    const bool is = open >= full;
    if (!was && is) {
      if (!full_times.empty() && changes[i].at - full_times.back().second <= bridge)
        full_times.back().second = INFINITY;
      else
        full_times.emplace_back(changes[i].at, INFINITY);
    } else if (was && !is) {
      full_times.back().second = changes[i].at;
    }
  }
  for (const auto& [begin, end] : full_times)
    if (end - begin > best.length()) best.begin = begin, best.end = end;
  best.peak = peak, best.least = peak;
  double at = changes.front().at, area = 0;
  open = 0;
  for (const Change& c : changes) {
    const double from = std::max(at, best.begin), to = std::min(c.at, best.end);
    if (to > from) {
      area += open * (to - from);
      if (to - from > bridge) best.least = std::min<double>(best.least, open);
    }
    at = c.at, open += c.by;
  }
  best.mean = best.length() > 0 ? area / best.length() : 0;
  best.before = best.begin - changes.front().at, best.after = changes.back().at - best.end;
  return best;
}

LevelStats analyse(const LevelRun& run) {
  LevelStats s;
  s.concurrency = run.concurrency, s.rate = run.rate, s.interrupted = run.interrupted;
  s.drafts = run.drafts;
  s.requests = run.requests.size();
  std::set<std::string> errors;
  for (const RequestRecord& r : run.requests) {
    s.looping += r.looping;
    if (r.ok()) {
      s.uncounted += r.output_tokens < 0;
      continue;
    }
    ++s.errors;
    const std::string what = r.error.empty() ? "answered without output" : r.error;
    if (errors.size() < 5 && errors.insert(what).second) s.first_errors.push_back(what);
  }
  s.stretch = longest_stretch(run.requests);
  collect_times(run, s);
  collect_rates(run, s);
  s.timeline = timeline_of(run);
  return s;
}

Fit fit_step_time(const std::vector<LevelStats>& levels) {
  Fit f;
  std::vector<std::pair<double, double>> points;  // open requests, step time
  std::set<double> different;
  double tokens = 0;
  for (const LevelStats& s : levels) {
    if (s.concurrency <= 0 || s.step_time <= 0 || s.stretch.peak < s.concurrency) continue;
    points.emplace_back(s.stretch.mean, s.step_time);
    different.insert(s.concurrency);
    tokens += s.tokens_a_piece;
  }
  if (different.size() < 3) {
    f.why = fmt::format("{} levels of different concurrency reached their load, a fit needs three", different.size());
    return f;
  }
  const auto n = static_cast<double>(points.size());
  double x = 0, y = 0, xx = 0, xy = 0;
  for (const auto& [px, py] : points) x += px / n, y += py / n;
  for (const auto& [px, py] : points) xx += (px - x) * (px - x), xy += (px - x) * (py - y);
  f.b = xy / xx, f.a = y - f.b * x, f.center = x;
  double residual = 0;
  for (const auto& [px, py] : points) residual += (py - f.a - f.b * px) * (py - f.a - f.b * px);
  const double deviation = std::sqrt(residual / (n - 2)), t = student(points.size() - 2);
  f.b_error = t * deviation / std::sqrt(xx);
  f.a_error = t * deviation * std::sqrt(1 / n + x * x / xx);
  tokens /= n;
  f.valid = f.b > 0;
  if (!f.valid) {
    f.why = "the step time does not grow with the load: the asymptote is beyond these levels";
    return f;
  }
  f.asymptote = tokens / f.b;
  f.asymptote_low = tokens / (f.b + f.b_error);
  f.asymptote_high = f.b > f.b_error ? tokens / (f.b - f.b_error) : 0;
  return f;
}

}  // namespace fathom::bench
