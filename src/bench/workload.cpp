#include "bench/workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "base/error.h"

namespace fathom::bench {
namespace {

/// SplitMix64: a few good bits from a counter.
class Random {
 public:
  Random(uint64_t seed, uint64_t stream) : state_(seed * 0x9E3779B97F4A7C15u ^ (stream + 1) * 0xD1B54A32D192ED03u) {}
  uint64_t next() {
    state_ += 0x9E3779B97F4A7C15u;
    uint64_t z = state_;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
  }
  uint64_t below(uint64_t n) { return next() % n; }
  template <size_t N>
  std::string_view pick(const std::array<std::string_view, N>& from) {
    return from[below(N)];
  }

 private:
  uint64_t state_;
};

constexpr std::array<std::string_view, 24> subjects = {
    "the old miller",   "a young fox",     "the king's daughter", "the captain",    "an honest weaver",
    "the night watch",  "the river",       "a travelling band",   "the engineer",   "my grandmother",
    "the last wolf",    "a patient clerk", "the lighthouse",      "a small engine", "the gardener",
    "the third son",    "a grey horse",    "the harbour master",  "the astronomer", "a flock of geese",
    "the baker's wife", "the winter",      "an empty house",      "the messenger"};
constexpr std::array<std::string_view, 20> verbs = {"carried",  "forgot",  "promised",  "followed",   "measured",
                                                    "repaired", "lost",    "found",     "painted",    "counted",
                                                    "answered", "guarded", "borrowed",  "remembered", "described",
                                                    "crossed",  "divided", "collected", "watched",    "named"};
constexpr std::array<std::string_view, 20> objects = {
    "a sack of flour", "the road to the sea", "three golden keys",    "a letter without a name", "the old bridge",
    "the bell tower",  "a basket of apples",  "the map of the coast", "seven short songs",       "the broken clock",
    "a pair of boots", "the price of bread",  "the deep forest",      "an unlit lantern",        "the first snow",
    "a wooden flute",  "the village well",    "a long ladder",        "the market square",       "two white stones"};
constexpr std::array<std::string_view, 12> endings = {
    "before the sun was up", "and nobody asked why", "while it rained",          "as the law required",
    "for the second time",   "with great care",      "in the year of the flood", "although it was late",
    "until the wind turned", "and told the others",  "without a word",           "because the gate stood open"};
constexpr std::array<std::string_view, 16> names = {"count", "offset", "buffer", "index",  "total",  "queue",
                                                    "state", "limit",  "result", "cursor", "weight", "depth",
                                                    "batch", "token",  "window", "scale"};

void add_sentence(std::string& out, Random& r, bool first) {
  std::string s = fmt::format("{} {} {} {}. ", r.pick(subjects), r.pick(verbs), r.pick(objects), r.pick(endings));
  s[0] = static_cast<char>(s[0] - 'a' + 'A');
  if (!first && r.below(7) == 0) out += "\n\n";
  out += s;
}

void add_code(std::string& out, Random& r, bool) {
  const auto a = r.pick(names), b = r.pick(names), c = r.pick(names);
  switch (r.below(4)) {
    case 0:
      out +=
          fmt::format("def {}_{}({}, {}={}):\n    return {} * {} + {}\n\n", a, b, b, c, r.below(100), b, c, r.below(9));
      break;
    case 1:
      out += fmt::format("for {} in range({}):\n    if {} % {} == 0:\n        {}.append({})\n", a, r.below(1000), a,
                         2 + r.below(7), b, c);
      break;
    case 2:
      out += fmt::format("{}[{}] = {{'{}': {}, '{}': [{}, {}]}}  # {}\n", a, r.below(64), b, r.below(100), c,
                         r.below(10), r.below(10), r.pick(endings));
      break;
    default:
      out += fmt::format("assert {}({}) <= {}, '{} {}'\n", a, b, r.below(512), c, r.pick(verbs));
  }
}

void add_record(std::string& out, Random& r, bool first) {
  out += fmt::format("{}{{\"id\": {}, \"{}\": \"{}\", \"{}\": {}.{:02}, \"{}\": [{}, {}, {}]}}", first ? "[" : ",\n ",
                     r.below(100000), r.pick(names), r.pick(objects), r.pick(names), r.below(1000), r.below(100),
                     r.pick(names), r.below(10), r.below(100), r.below(1000));
}

void add_random(std::string& out, Random& r, bool) {
  const uint64_t letters = 2 + r.below(8);
  for (uint64_t i = 0; i < letters; ++i) out += static_cast<char>('a' + r.below(26));
  out += ' ';
}

}  // namespace

Lengths parse_lengths(const std::string& option, std::string_view text) {
  constexpr int64_t most = 1 << 24;
  const auto number = [&](std::string_view part) {
    int64_t n = 0;
    const auto [stop, error] = std::from_chars(part.data(), part.data() + part.size(), n);
    if (error != std::errc() || stop != part.data() + part.size() || n < 1 || n > most)
      fail("{} {}: expected a number of tokens or a range such as 128..1024", option, printable(std::string(text)));
    return n;
  };
  const size_t dots = text.find("..");
  const Lengths l = dots == text.npos ? Lengths{number(text), number(text)}
                                      : Lengths{number(text.substr(0, dots)), number(text.substr(dots + 2))};
  if (l.low > l.high) fail("{} {}: the range ends before it begins", option, printable(std::string(text)));
  return l;
}

Content parse_content(std::string_view name) {
  constexpr std::pair<std::string_view, Content> kinds[] = {{"prose", Content::prose},
                                                            {"code", Content::code},
                                                            {"structured", Content::structured},
                                                            {"random", Content::random}};
  for (const auto& [known, kind] : kinds)
    if (known == name) return kind;
  fail("content {}: expected prose, code, structured or random", printable(std::string(name)));
}

Prompt Workload::prompt(uint64_t index) const {
  Random r(options_.seed, index);
  Prompt p;
  const int64_t tokens = options_.input.draw(r.next());
  p.max_tokens = options_.output.draw(r.next());
  const auto bytes = static_cast<size_t>(std::max(1.0, static_cast<double>(tokens) * bytes_a_token_));
  // Different from the first bytes on, so that no prefix cache helps; a shared beginning is drawn from stream 0.
  if (!options_.shared_prefix) p.text = fmt::format("{:x} ", r.next());
  Random content(options_.seed ^ 0x5851F42D4C957F2Du, options_.shared_prefix ? 0 : index);
  for (bool first = true; p.text.size() < bytes; first = false) {
    switch (options_.content) {
      case Content::prose:
        add_sentence(p.text, content, first);
        break;
      case Content::code:
        add_code(p.text, content, first);
        break;
      case Content::structured:
        add_record(p.text, content, first);
        break;
      case Content::random:
        add_random(p.text, content, first);
        break;
    }
  }
  p.text.resize(bytes);
  return p;
}

void Workload::calibrate(size_t bytes, int64_t tokens) {
  if (tokens <= 0 || bytes < 16) return;
  seen_bytes_ += static_cast<double>(bytes), seen_tokens_ += static_cast<double>(tokens);
  bytes_a_token_ = std::clamp(seen_bytes_ / seen_tokens_, 0.25, 64.0);
}

bool ends_in_loop(std::string_view text) {
  constexpr size_t longest = 60, times = 6;
  for (size_t period = 1; period <= longest && period * times <= text.size(); ++period) {
    const std::string_view tail = text.substr(text.size() - period * times);
    const std::string_view unit = tail.substr(0, period);
    if (unit.find_first_not_of(" \n\t-=*_.#") == unit.npos) continue;  // rules and blank lines
    bool same = true;
    for (size_t i = 1; i < times && same; ++i) same = tail.substr(i * period, period) == unit;
    if (same) return true;
  }
  return false;
}

}  // namespace fathom::bench
