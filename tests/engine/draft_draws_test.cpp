// What is drawn with drafts follows the distribution asked for: engine, speculator and sampler as they are, on a model
// whose logits are a table, so that hundreds of thousands of draws take seconds and the right distribution is known.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/draft_support.h"
#include "engine/stand_in_tokenizer.h"
#include "text/constrain/json_grammar.h"

namespace fathom::test {
namespace {

constexpr int32_t kVocabulary = 16;  // small: every pair of tokens comes often
constexpr int32_t kWithBytes = 288;  // where the output has a form
constexpr int64_t kOutput = 100;     // tokens of a request
constexpr int32_t kStop = 5;         // id that ends a request

/// Logit of `token` behind `last`, standard deviation about 1.5.
float logit(int32_t last, int32_t token) {
  std::mt19937 rng(static_cast<uint32_t>(last) * 4099u + static_cast<uint32_t>(token) * 7u + 1u);
  rng.discard(2);
  return std::normal_distribution<float>(0, 1.5f)(rng);
}
const std::vector<float>& table() {
  static const auto all = [] {
    std::vector<float> t;
    for (int32_t i = 0; i < kWithBytes; ++i)
      for (int32_t k = 0; k < kWithBytes; ++k) t.push_back(logit(i, k));
    return t;
  }();
  return all;
}
std::span<const float> logits_behind(int32_t last, size_t vocabulary) {
  return std::span(table()).subspan(static_cast<size_t>(last) * kWithBytes, vocabulary);
}

template <typename Args>
constexpr ops::Variant<Args> kNothing{"nothing", ops::Backend::cpu, ops::always<Args>, nullptr,
                                      [](const Args&, const ops::Launch&) {}};

/// Ids go where the streams would be, and the head looks up what comes behind them.
void keep_ids(const ops::EmbedArgs& a, const ops::Launch&) {
  for (int64_t t = 0; t < a.ids.size[0]; ++t) std::memcpy(&a.streams(t, 0, 0), &a.ids(t), sizeof(int32_t));
}
void look_up(const ops::HeadArgs& a, const ops::Launch&) {
  for (int64_t r = 0; r < a.rows.size[0]; ++r) {
    int32_t id;
    std::memcpy(&id, &a.streams(a.rows(r), 0, 0), sizeof id);
    std::ranges::copy(logits_behind(id, static_cast<size_t>(a.logits.size[1])), &a.logits(r, 0));
  }
}

ops::OpTable table_ops() {
  static constexpr ops::Variant<ops::EmbedArgs> embed{"table", ops::Backend::cpu, ops::always<ops::EmbedArgs>, nullptr,
                                                      keep_ids};
  static constexpr ops::Variant<ops::HeadArgs> head{"table", ops::Backend::cpu, ops::always<ops::HeadArgs>, nullptr,
                                                    look_up};
  ops::OpTable t = ops::op_table("cpu");
  t.embed = &embed, t.head = &head;
  t.residual_mix = &kNothing<ops::ResidualMixArgs>, t.linear_fp8 = &kNothing<ops::LinearFp8Args>;
  t.quantize = &kNothing<ops::QuantizeArgs>, t.query = &kNothing<ops::QueryArgs>;
  t.window_write = &kNothing<ops::WindowWriteArgs>, t.sparse_attention = &kNothing<ops::SparseAttentionArgs>;
  t.output_project = &kNothing<ops::OutputProjectArgs>, t.route = &kNothing<ops::RouteArgs>;
  t.experts = &kNothing<ops::ExpertsArgs>;
  return t;
}

ModelConfig config_of(int32_t vocabulary) {
  ModelConfig c = Fairy::get().checkpoint.config();
  c.vocab_size = vocabulary, c.num_layers = 1, c.compress_ratios = {0}, c.dspark.reset();
  return c;
}

/// Proposes what a sampler draws from logits near those of the model, and now and then something else.
class NearDraft : public DraftSource {
 public:
  NearDraft(float noise, double other, int32_t vocabulary) : noise_(noise), other_(other), vocabulary_(vocabulary) {}
  int64_t depth() const override { return 4; }
  void push(const StepBatch&, const Activations&, std::span<const LayerCache>) override {}
  void set_recorder(Recorder*) override {}

  std::vector<Draft> propose(std::span<const DraftStart> starts, std::span<const LayerCache>,
                             const Choose& choose) override {
    std::vector<Draft> out(starts.size());
    std::vector<float> logits;
    for (size_t i = 0; i < starts.size(); ++i) {
      int32_t last = starts[i].token;
      for (int64_t place = 0; place < starts[i].most; ++place) {
        const auto exact = logits_behind(last, static_cast<size_t>(vocabulary_));
        logits.assign(exact.begin(), exact.end());
        for (float& l : logits) l += noise_ * std::normal_distribution<float>()(rng_);
        last = choose(i, place, logits);
        if (last < 0) break;
        if (std::uniform_real_distribution<>()(rng_) < other_)
          last = static_cast<int32_t>(rng_() % static_cast<uint32_t>(vocabulary_));
        out[i].tokens.push_back(last), out[i].confidence.push_back(0.5f);
      }
    }
    return out;
  }

 private:
  float noise_;
  double other_;
  int32_t vocabulary_;
  std::mt19937 rng_{7};
};

/// One way of sampling.
struct Case {
  const char* name;
  std::function<void(GenerationRequest&)> set;
  double share = 1;     // of the tokens asked for, those that come: stop ids end requests early
  bool formed = false;  // the output is a JSON object
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"Plain", [](auto&) {}},
      {"Temperature", [](auto& r) { r.sampling.temperature = 0.6; }},
      {"TopK", [](auto& r) { r.sampling.top_k = 5; }},
      {"TopP", [](auto& r) { r.sampling.top_p = 0.8; }},
      {"MinP", [](auto& r) { r.sampling.min_p = 0.12; }},
      {"Repetition", [](auto& r) { r.sampling.repetition_penalty = 1.4; }},
      {"Frequency", [](auto& r) { r.sampling.frequency_penalty = 0.3; }},
      {"Presence", [](auto& r) { r.sampling.presence_penalty = 0.9; }},
      {"Bias",
       [](auto& r) {
         r.sampling.logit_bias = {{3, 1.5}, {7, -100.0}, {11, -0.7}};
       }},
      {"MinTokens", [](auto& r) { r.stop_ids = {kStop}, r.min_tokens = 30; }, 0.4},
      {"Form", [](auto& r) { r.stop_ids = {1}; }, 0.6, true},
      {"All",
       [](auto& r) {
         r.sampling.temperature = 1.3, r.sampling.top_k = 10, r.sampling.top_p = 0.95, r.sampling.min_p = 0.02;
         r.sampling.repetition_penalty = 1.15, r.sampling.frequency_penalty = 0.1, r.sampling.presence_penalty = 0.2;
         r.sampling.logit_bias = {{2, 0.5}}, r.sampling.top_logprobs = 0, r.stop_ids = {kStop}, r.min_tokens = 60;
       },
       0.7},
  };
  return all;
}

/// The distribution that a request asks for behind `tokens`, from the definitions alone. `allowed` may be null.
std::vector<double> wanted(const GenerationRequest& r, std::span<const int32_t> tokens, size_t prompt,
                           size_t vocabulary, const text::TokenSet* allowed) {
  const SamplingParams& s = r.sampling;
  const auto exact = logits_behind(tokens.back(), vocabulary);
  std::vector<double> l(exact.begin(), exact.end());
  for (const auto& [id, bias] : s.logit_bias) l[static_cast<size_t>(id)] += bias;
  std::vector<int> seen(vocabulary, 0), times(vocabulary, 0);
  for (size_t i = 0; i < tokens.size(); ++i)
    seen[static_cast<size_t>(tokens[i])] = 1, times[static_cast<size_t>(tokens[i])] += i >= prompt;
  for (size_t i = 0; i < vocabulary; ++i) {
    if (seen[i]) l[i] = l[i] > 0 ? l[i] / s.repetition_penalty : l[i] * s.repetition_penalty;
    l[i] -= s.frequency_penalty * times[i] + (times[i] > 0 ? s.presence_penalty : 0);
    if (allowed && !((*allowed)[i / 64] >> (i % 64) & 1)) l[i] = -INFINITY;
  }
  if (static_cast<int64_t>(tokens.size() - prompt) < r.min_tokens)
    for (const int32_t id : r.stop_ids) l[static_cast<size_t>(id)] = -INFINITY;
  std::vector<size_t> order(vocabulary);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return l[a] > l[b]; });
  std::vector<double> p;
  for (const size_t i : order) p.push_back(std::exp((l[i] - l[order[0]]) / s.temperature));
  size_t kept = p.size();
  if (s.top_k > 0) kept = std::min(kept, static_cast<size_t>(s.top_k));
  const double total = std::accumulate(p.begin(), p.begin() + static_cast<int64_t>(kept), 0.0);
  double sum = 0;
  for (size_t i = 0; i < kept; ++i)
    if ((sum += p[i]) >= s.top_p * total) kept = std::min(kept, i + 1);
  std::vector<double> out(vocabulary, 0);
  double left = 0;
  for (size_t i = 0; i < kept; ++i)
    if (p[i] >= s.min_p) left += out[order[i]] = p[i];
  for (double& v : out) v /= left;
  return out;
}

struct Drawn {
  std::vector<GenerationRequest> requests;
  std::vector<std::vector<int32_t>> tokens;  // prompt and output
  std::vector<std::vector<float>> logprobs;
  SpeculationStats stats;
};

/// Draws about `draws` tokens; seeds are counted from `seed` on. Forms take a tokenizer of bytes.
Drawn draw(const Case& c, int64_t draws, uint64_t seed, std::unique_ptr<DraftSource> drafts, double acceptance = -1) {
  const int32_t vocabulary = c.formed ? kWithBytes : kVocabulary;
  const ModelConfig config = config_of(vocabulary);
  EngineOptions o;
  o.max_sequences = 64, o.cache_tokens = 64 * 256, o.chunk_tokens = 64, o.prefix_cache = false, o.max_context = 256;
  o.speculate = drafts ? 4 : 0, o.draft_acceptance = acceptance;
  Engine engine(config, Fairy::get().weights, o, nullptr, std::move(drafts));
  engine.model().set_ops(table_ops());
  static const auto tokenizer = stand_in_tokenizer(kWithBytes);  // forms refer to it
  const auto bytes = std::make_shared<const text::TokenTable>(tokenizer);
  Drawn out;
  for (int64_t i = 0; i * kOutput < draws; ++i) {
    GenerationRequest r;
    r.prompt = {static_cast<int32_t>(i) % kVocabulary};
    r.max_tokens = kOutput, r.sampling.seed = seed + static_cast<uint64_t>(i);
    c.set(r);
    if (c.formed) r.constraint = std::make_shared<text::Constraint>(text::json_object_grammar(), bytes, r.stop_ids);
    out.requests.push_back(r), out.tokens.push_back(r.prompt), out.logprobs.emplace_back();
    engine.add(r);
  }
  while (engine.step([&](const GenerationEvent& e) {
    ASSERT_EQ(e.error, "");
    out.tokens[static_cast<size_t>(e.request) - 1].push_back(e.token.token);
    out.logprobs[static_cast<size_t>(e.request) - 1].push_back(e.token.logprob);
  })) {
  }
  out.stats = engine.stats().speculation;
  return out;
}

/// Observed and expected numbers of every pair of neighbours, of all draws.
struct Pairs {
  std::vector<double> observed, expected;
  double draws = 0;
  size_t vocabulary = 0;

  Pairs(const Case& c, const Drawn& d) : vocabulary(static_cast<size_t>(c.formed ? kWithBytes : kVocabulary)) {
    observed.assign(vocabulary * vocabulary, 0), expected = observed;
    for (size_t i = 0; i < d.tokens.size(); ++i) {
      const GenerationRequest& r = d.requests[i];
      std::optional<text::ConstraintMatcher> form;
      if (r.constraint) form.emplace(r.constraint);
      for (size_t at = 1; at < d.tokens[i].size(); ++at, ++draws) {
        const auto before = std::span(d.tokens[i]).first(at);
        const auto row = static_cast<size_t>(before.back()) * vocabulary;
        const auto p = wanted(r, before, 1, vocabulary, form ? form->allowed() : nullptr);
        for (size_t k = 0; k < vocabulary; ++k) expected[row + k] += p[k];
        ++observed[row + static_cast<size_t>(d.tokens[i][at])];
        if (form) form->accept(d.tokens[i][at]);
      }
    }
  }
};

/// Standard deviations by which a chi-square lies above its mean. Rare cells of a row count as one.
class ChiSquare {
 public:
  /// Of two numbers where the first is known to be near the second by chance: adds (a - b)^2 / variance.
  void cell(double difference, double variance) { sum_ += difference * difference / variance, ++cells_; }
  /// The cells since the last call are of one row, and add up.
  void end_row() { cells_ -= cells_ > before_, before_ = cells_; }
  double deviations() const { return (sum_ - cells_) / std::sqrt(2 * std::max(1.0, cells_)); }

 private:
  double sum_ = 0, cells_ = 0, before_ = 0;
};

constexpr double kRare = 10, kLimit = 5;

double against_target(const Pairs& p) {
  ChiSquare x;
  for (size_t i = 0; i < p.vocabulary; ++i) {
    double rare = 0, rare_seen = 0;
    for (size_t k = i * p.vocabulary; k < (i + 1) * p.vocabulary; ++k) {
      EXPECT_FALSE(p.expected[k] == 0 && p.observed[k] > 0) << "a token that must not come";
      if (p.expected[k] < kRare)
        rare += p.expected[k], rare_seen += p.observed[k];
      else
        x.cell(p.observed[k] - p.expected[k], p.expected[k]);
    }
    if (rare >= kRare) x.cell(rare_seen - rare, rare);
    x.end_row();
  }
  return x.deviations();
}

double against_each_other(const Pairs& a, const Pairs& b) {
  ChiSquare x;
  for (size_t i = 0; i < a.vocabulary; ++i) {
    const auto row = [&](const Pairs& p) {
      const auto first = p.observed.begin() + static_cast<int64_t>(i * p.vocabulary);
      return std::accumulate(first, first + static_cast<int64_t>(p.vocabulary), 0.0);
    };
    const double na = row(a), nb = row(b);
    if (na < kRare || nb < kRare) continue;
    for (size_t k = i * a.vocabulary; k < (i + 1) * a.vocabulary; ++k)
      if (const double both = a.observed[k] + b.observed[k]; both >= 2 * kRare)
        x.cell(std::sqrt(nb / na) * a.observed[k] - std::sqrt(na / nb) * b.observed[k], both);
    x.end_row();
  }
  return x.deviations();
}

class Draws : public testing::TestWithParam<Case> {};

TEST_P(Draws, WithDraftsFollowTheTargetAndPlainSampling) {
  const Case& c = GetParam();
  const int64_t many = kSanitized ? 4000 : c.formed ? 20'000 : 100'000;  // a form is no option of the sampler
  const int32_t vocabulary = c.formed ? kWithBytes : kVocabulary;
  const auto wanted_draws = static_cast<int64_t>(static_cast<double>(many) / c.share);
  const auto drafted = draw(c, wanted_draws, 1'000'000, std::make_unique<NearDraft>(0.7f, 0.1, vocabulary));
  const Pairs pairs(c, drafted);
  EXPECT_GE(pairs.draws, static_cast<double>(many));
  EXPECT_GT(drafted.stats.accepted, drafted.stats.offered / 20);
  EXPECT_LT(drafted.stats.accepted, drafted.stats.offered * 9 / 10);
  EXPECT_LT(against_target(pairs), kLimit);
  const Pairs plain(c, draw(c, wanted_draws, 2'000'000, nullptr));
  EXPECT_LT(against_target(plain), kLimit);
  // Where a form rules, what comes behind a token is not the token's alone: there the target has to do.
  if (!c.formed) {
    EXPECT_LT(against_each_other(pairs, plain), kLimit);
  }
  RecordProperty("deviations", std::to_string(against_target(pairs)));
}

TEST_P(Draws, AreThoseOfPlainSamplingOfTheSameSeedAndDraftsKeepToAllOptions) {
  const Case& c = GetParam();
  const int32_t vocabulary = c.formed ? kWithBytes : kVocabulary;
  const int64_t some = kSanitized ? 1000 : 6000;
  const auto plain = draw(c, some, 3, nullptr);
  const auto near = draw(c, some, 3, std::make_unique<NearDraft>(1.0f, 0.2, vocabulary));
  const auto same = draw(c, some, 3, std::make_unique<NearDraft>(0.0f, 0.0, vocabulary));
  const auto other = draw(c, some, 4'000, std::make_unique<NearDraft>(0.0f, 0.0, vocabulary));
  for (const Drawn* d : {&near, &same}) {
    EXPECT_EQ(d->tokens, plain.tokens);
    EXPECT_EQ(d->logprobs, plain.logprobs);
    EXPECT_GT(d->stats.offered, some / 4);
  }
  // Drawn from the model's own logits a draft is always right: penalties, bans and forms apply to it as they will.
  EXPECT_EQ(same.stats.accepted, same.stats.offered);
  EXPECT_NE(other.tokens, plain.tokens);
}

INSTANTIATE_TEST_SUITE_P(Options, Draws, testing::ValuesIn(cases()),
                         [](const auto& i) { return std::string(i.param.name); });

TEST(DrawsOfDrafts, EndTheThinkingWhereItMustEnd) {
  static constexpr int32_t kEnd = 9;
  const Case limited{"Thinking", [](GenerationRequest& r) {
                       r.thinking = {20, kEnd};
                       r.sampling.logit_bias = {{kEnd, -100.0}};  // never by itself
                     }};
  const auto plain = draw(limited, 2000, 5, nullptr);
  const auto drafted = draw(limited, 2000, 5, std::make_unique<NearDraft>(0.5f, 0.1, kVocabulary));
  EXPECT_EQ(drafted.tokens, plain.tokens);
  EXPECT_GT(drafted.stats.accepted, 200);
  for (const auto& tokens : drafted.tokens) {
    EXPECT_EQ(tokens[1 + 20], kEnd);
    EXPECT_EQ(std::count(tokens.begin() + 1, tokens.end(), kEnd), 1);
  }
}

TEST(DrawsOfDrafts, ThatAreTakenForRightAreNoticed) {
  const Case& c = cases()[0];
  const auto forced =
      draw(c, kSanitized ? 20'000 : 100'000, 1, std::make_unique<NearDraft>(1.0f, 0.2, kVocabulary), 0.5);
  EXPECT_GT(against_target(Pairs(c, forced)), 4 * kLimit) << "the test cannot fail";
}

}  // namespace
}  // namespace fathom::test
