// Prompts of wanted lengths and kinds. The same seed gives the same prompts, whatever the target.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fathom::bench {

/// A length in tokens: always the same, or drawn evenly from a range. "512", "128..1024".
struct Lengths {
  int64_t low = 0, high = 0;
  int64_t draw(uint64_t random) const {
    return low + static_cast<int64_t>(random % static_cast<uint64_t>(high - low + 1));
  }
  double mean() const { return double(low + high) / 2; }
};

/// Throws Error naming `option`.
Lengths parse_lengths(const std::string& option, std::string_view text);

enum class Content { prose, code, structured, random };
/// Throws Error; names: prose, code, structured, random.
Content parse_content(std::string_view name);

struct WorkloadOptions {
  Lengths input{256, 256}, output{128, 128};
  Content content = Content::prose;
  bool shared_prefix = false;  // all prompts begin alike; otherwise the first words differ
  uint64_t seed = 0;
};

struct Prompt {
  std::string text;
  int64_t max_tokens = 0;
};

class Workload {
 public:
  explicit Workload(const WorkloadOptions& options) : options_(options) {}

  /// Prompt number `index`, about as many tokens long as its drawn length by what is known of the tokenizer.
  Prompt prompt(uint64_t index) const;
  /// Tells how many tokens a text had, so that later prompts come closer to their lengths. `overhead`: tokens that
  /// every prompt has around its text.
  void calibrate(size_t bytes, int64_t tokens);
  double bytes_a_token() const { return bytes_a_token_; }

 private:
  WorkloadOptions options_;
  double bytes_a_token_ = 4.2;
  double seen_bytes_ = 0, seen_tokens_ = 0;
};

/// Whether the end of a text repeats itself: the last period of at most 60 bytes, at least six times.
bool ends_in_loop(std::string_view text);

}  // namespace fathom::bench
