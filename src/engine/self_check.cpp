#include "engine/self_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/error.h"
#include "base/progress.h"
#include "cache/step_plan.h"
#include "engine/draft_check.h"
#include "formats/safetensors.h"
#include "model/transformer.h"

namespace fathom {
namespace {

using Rows = std::vector<std::vector<float>>;

/// What a golden file holds, checked: it may be for another model, or damaged.
struct Golden {
  std::vector<int32_t> ids, where, greedy;
  std::vector<float> logits, margin;

  /// Empty when all fits, else what does not.
  std::string mismatch(const ModelConfig& config) const {
    const auto vocab = static_cast<size_t>(config.vocab_size);
    const auto outside = [](const std::vector<int32_t>& v, int64_t limit) {
      return std::any_of(v.begin(), v.end(), [&](int32_t id) { return id < 0 || id >= limit; });
    };
    if (ids.empty() || where.empty()) return "it holds no prompt or no logits";
    if (static_cast<int64_t>(ids.size() + greedy.size()) > config.max_positions)
      return fmt::format("it has {} tokens, more than the model has positions", ids.size() + greedy.size());
    if (logits.size() != where.size() * vocab || outside(ids, config.vocab_size) || outside(greedy, config.vocab_size))
      return fmt::format("its logits or ids do not fit a vocabulary of {}", vocab);
    if (outside(where, static_cast<int64_t>(ids.size()))) return "logit_positions leave the prompt";
    if (margin.size() != greedy.size()) return "greedy and greedy_margin differ in length";
    return {};
  }
};

/// A model and a cache that prompts are fed through.
class Session {
 public:
  Session(const LoadedModel& m, const std::string& ops, int64_t tokens, int32_t sequences = 2)
      : Session(m, m.weights, ops, tokens, sequences) {}
  Session(const LoadedModel& m, const Weights& weights, const std::string& ops, int64_t tokens, int32_t sequences)
      : model_(m.config(), weights, ops::op_table(ops, weights.memory->device().info())),
        cache_(m.config(), CacheBudget{tokens, sequences, -1, 0}, weights.devices()) {
    for (int rank = 1; rank < cache_.ranks(); ++rank) model_.set_layers(rank, cache_.layers(rank));
  }

  SequenceId create() { return cache_.create(); }
  Cache& cache() { return cache_; }
  Transformer& model() { return model_; }

  Rows feed(SequenceId id, std::span<const int32_t> tokens, WantLogits want) {
    const SegmentRequest request{id, tokens, want};
    return step({&request, 1});
  }

  Rows step(std::span<const SegmentRequest> requests) {
    for (const auto& r : requests)
      if (!cache_.reserve(r.sequence, static_cast<int64_t>(r.tokens.size())))
        throw std::logic_error("self check: cache too small");
    const Activations& out = model_.step(plan_.build(model_.config(), cache_, requests), cache_.layers());
    for (const auto& r : requests) cache_.commit(r.sequence, static_cast<int64_t>(r.tokens.size()));
    cache_.check();
    Rows rows;
    for (int64_t i = 0; i < out.logits.size[0] && out.logits.data; ++i)
      rows.emplace_back(&out.logits(i, 0), &out.logits(i, 0) + out.logits.size[1]);
    return rows;
  }

 private:
  Transformer model_;
  Cache cache_;
  StepPlan plan_;
};

struct Closeness {
  double cosine = 1;  // the worst row
  int64_t top1 = 0, rows = 0;
  bool finite = true;

  void add(const std::vector<float>& a, const float* b) {
    double ab = 0, aa = 0, bb = 0;
    for (size_t i = 0; i < a.size(); ++i)
      ab += double{a[i]} * b[i], aa += double{a[i]} * a[i], bb += double{b[i]} * b[i];
    const double c = ab / std::sqrt(aa * bb);
    finite = finite && std::isfinite(c);
    mean = (mean * static_cast<double>(rows) + c) / static_cast<double>(rows + 1);
    cosine = std::min(cosine, c);
    top1 += std::max_element(a.begin(), a.end()) - a.begin() == std::max_element(b, b + a.size()) - b;
    ++rows;
  }
  double mean = 0;
};

std::vector<int32_t> test_prompt(const LoadedModel& m, size_t length) {
  std::mt19937 rng(20260731);
  std::vector<int32_t> ids{m.config().bos_id};
  while (ids.size() < length)
    ids.push_back(static_cast<int32_t>(rng() % static_cast<uint32_t>(m.tokenizer.vocab_size())));
  return ids;
}

CheckResult inventory(const LoadedModel& m) {
  const auto& c = m.config();
  static constexpr const char* drafts[] = {"no draft", "an MTP block", "a DSpark draft"};
  return {"inventory", Verdict::passed,
          fmt::format("{} tensors, {}, each used once; {} layers, {} experts in {}, {}", m.source->tensor_count(),
                      human_bytes(static_cast<double>(m.source->total_bytes())), c.num_layers, c.num_experts,
                      name_of(m.weights.layout.experts), drafts[static_cast<int>(m.weights.layout.draft)])};
}

/// Every chunk size must give the same bits.
CheckResult prefill_equals_decode(const LoadedModel& m, const std::string& ops) {
  const auto ids = test_prompt(m, 200);
  Session s(m, ops, 2048, 6);
  const Rows whole = s.feed(s.create(), ids, WantLogits::all);
  double worst = 0;
  std::string sizes;
  for (size_t chunk : {1, 7, 64, 129}) {
    const SequenceId id = s.create();
    size_t t = 0;
    for (size_t at = 0; at < ids.size(); at += chunk) {
      const auto part = std::span(ids).subspan(at, std::min(chunk, ids.size() - at));
      for (const auto& row : s.feed(id, part, WantLogits::all)) {
        for (size_t v = 0; v < row.size(); ++v) {
          const double difference = std::abs(double{row[v]} - whole[t][v]);
          worst = std::isnan(difference) ? INFINITY : std::max(worst, difference);
        }
        ++t;
      }
    }
    sizes += fmt::format("{}{}", sizes.empty() ? "" : ", ", chunk);
    s.cache().release(id);
  }
  return {"prefill equals decode", worst == 0 ? Verdict::passed : Verdict::failed,
          fmt::format("200 tokens at once against chunks of {}: largest difference of any logit {:g}", sizes, worst)};
}

CheckResult batch_equals_alone(const LoadedModel& m, const std::string& ops) {
  const auto ids = test_prompt(m, 150);
  Session s(m, ops, 2048, 6);
  const std::vector<std::span<const int32_t>> prompts = {std::span(ids).first(1), std::span(ids).first(31),
                                                         std::span(ids)};
  Rows alone;
  std::vector<SegmentRequest> together;
  for (const auto& p : prompts) {
    alone.push_back(s.feed(s.create(), p, WantLogits::last).at(0));
    together.push_back({s.create(), p, WantLogits::last});
  }
  const bool same = s.step(together) == alone;
  return {"batch equals alone", same ? Verdict::passed : Verdict::failed,
          fmt::format("3 prompts of 1, 31 and 150 tokens: {}",
                      same ? "the same bits alone and together" : "logits differ")};
}

/// Steps that the device replays must give the bits of steps that are launched op by op.
CheckResult recorded_equals_launched(const LoadedModel& m, const std::string& ops) {
  constexpr size_t kPrompt = 20, kSteps = 140;
  if (m.weights.memory->device().shares_host_memory())
    return {"recorded steps", Verdict::skipped, "the processor records none"};
  const auto ids = test_prompt(m, kPrompt + kSteps);
  std::vector<Rows> results[2];
  for (const bool recorded : {false, true}) {
    Session s(m, ops, 4096, 3);
    s.model().use_graphs(recorded);
    const SequenceId sequences[] = {s.create(), s.create(), s.create()};
    for (size_t i = 0; i < 3; ++i) s.feed(sequences[i], std::span(ids).first(kPrompt - i), WantLogits::last);
    for (size_t step = 0; step < kSteps; ++step) {
      std::vector<SegmentRequest> together;  // one, two and three at a time: sizes that are filled up too
      for (size_t i = 0; i <= step % 3; ++i)
        together.push_back({sequences[i], std::span(ids).subspan(kPrompt + step, 1), WantLogits::last});
      results[recorded].push_back(s.step(together));
    }
  }
  size_t differing = 0;
  for (size_t step = 0; step < kSteps; ++step) differing += results[0][step] != results[1][step];
  return {"recorded steps", differing == 0 ? Verdict::passed : Verdict::failed,
          fmt::format("{} steps of 1 to 3 sequences: {} differ from steps launched op by op", kSteps, differing)};
}

CheckResult rollback_is_exact(const LoadedModel& m, const std::string& ops) {
  const auto ids = test_prompt(m, 140);
  Session s(m, ops, 2048, 3);
  const auto until = [&](size_t n) { return std::span(ids).first(n); };
  const SequenceId a = s.create(), b = s.create();
  const auto want = s.feed(a, until(131), WantLogits::last);
  s.feed(b, until(126), WantLogits::none);
  s.feed(b, std::span(ids).subspan(60, 6), WantLogits::none);  // rejected drafts
  const int64_t from = s.cache().rollback(b, 126);
  const bool same = s.feed(b, std::span(ids).subspan(static_cast<size_t>(from), static_cast<size_t>(131 - from)),
                           WantLogits::last) == want;
  return {"rollback", same ? Verdict::passed : Verdict::failed,
          fmt::format("6 tokens taken back at 126, then on to 131: {}",
                      same ? "the same bits as without them" : "logits differ")};
}

/// Fast ops against the references, which are slow: a few tokens on a big model.
CheckResult against_reference(const LoadedModel& m, const std::string& ops) {
  if (ops == "ref") return {"reference ops", Verdict::skipped, "the references themselves are being checked"};
  const bool small = m.source->total_bytes() < (uint64_t{1} << 30);
  // The references run on the whole model, in host memory.
  const bool on_host = m.weights.memory->device().shares_host_memory() && m.weights.shard.size == 1;
  if (!on_host && !small)
    return {"reference ops", Verdict::skipped, "the references would need all weights in host memory too"};
  const auto ids = test_prompt(m, small ? 160 : 4);
  const Weights host = on_host ? Weights{} : load_weights(*m.source, make_host_memory());
  Session fast(m, ops, 512, 1), slow(m, on_host ? m.weights : host, "ref", 512, 1);
  const Rows a = fast.feed(fast.create(), ids, WantLogits::all), b = slow.feed(slow.create(), ids, WantLogits::all);
  Closeness c;
  for (size_t i = 0; i < a.size(); ++i) c.add(a[i], b[i].data());
  return {"reference ops", c.finite && c.mean > 0.999 ? Verdict::passed : Verdict::failed,
          fmt::format("{} random tokens: logit cosine mean {:.5f}, worst {:.5f}, same best token {} of {}", c.rows,
                      c.mean, c.cosine, c.top1, c.rows)};
}

CheckResult golden(const LoadedModel& m, const std::string& ops, const std::filesystem::path& file) {
  const SafetensorsFile file_data(file);
  const std::string name = "golden " + printable(file.stem().string(), 60);
  const Golden g{file_data.copy<int32_t>("ids"), file_data.copy<int32_t>("logit_positions"),
                 file_data.copy<int32_t>("greedy"), file_data.copy<float>("logits"),
                 file_data.copy<float>("greedy_margin")};
  if (const std::string wrong = g.mismatch(m.config()); !wrong.empty())
    return {name, Verdict::failed, "made for another model, or damaged: " + wrong};
  const auto vocab = static_cast<size_t>(m.config().vocab_size);
  Session s(m, ops, static_cast<int64_t>(g.ids.size() + g.greedy.size()) + 64, 1);
  const SequenceId id = s.create();
  const Rows rows = s.feed(id, g.ids, WantLogits::all);
  Closeness c;
  for (size_t i = 0; i < g.where.size(); ++i)
    c.add(rows.at(static_cast<size_t>(g.where[i])), g.logits.data() + i * vocab);
  const auto best = [](const std::vector<float>& row) {
    return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
  };
  int32_t token = best(rows.back());
  size_t steps = 0;
  while (steps < g.greedy.size() && token == g.greedy[steps]) {
    ++steps;
    token = best(s.feed(id, std::span(&token, 1), WantLogits::last).at(0));
  }
  const bool tie = steps == g.greedy.size() || g.margin[steps] < 0.5f;
  std::string detail = fmt::format("{} tokens: logit cosine mean {:.5f}, worst {:.5f}; greedy equal for {} of {}",
                                   g.ids.size(), c.mean, c.cosine, steps, g.greedy.size());
  if (steps < g.greedy.size()) detail += fmt::format(", then two tokens {:.3f} apart", g.margin[steps]);
  return {name, c.finite && c.mean > 0.999 && tie ? Verdict::passed : Verdict::failed, detail};
}

std::vector<std::filesystem::path> golden_files(const std::filesystem::path& folder) {
  const std::string shown = printable(folder.string(), 400);
  std::error_code error;
  std::filesystem::directory_iterator entries(folder, error);
  if (error) fail("{}: cannot read the folder of goldens: {}", shown, error.message());
  std::vector<std::filesystem::path> files;
  for (const auto& entry : entries)
    if (entry.path().filename().string().starts_with("e2e_") && entry.path().extension() == ".safetensors")
      files.push_back(entry.path());
  if (files.empty()) fail("{}: holds no e2e_*.safetensors", shown);
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

bool self_check(const LoadedModel& m, const SelfCheckOptions& options,
                const std::function<void(const CheckResult&)>& report) {
  std::vector<std::filesystem::path> goldens;
  if (!options.goldens.empty()) goldens = golden_files(options.goldens);
  bool good = true;
  const auto take = [&](CheckResult r) {
    good = good && r.verdict != Verdict::failed;
    report(r);
  };
  take(inventory(m));
  take(prefill_equals_decode(m, options.ops));
  take(batch_equals_alone(m, options.ops));
  take(rollback_is_exact(m, options.ops));
  take(recorded_equals_launched(m, options.ops));
  take(drafts_change_nothing(m, {options.ops, options.draft_requests}));
  take(against_reference(m, options.ops));
  if (goldens.empty()) take({"goldens", Verdict::skipped, "none given (--goldens FOLDER)"});
  for (const auto& file : goldens) take(golden(m, options.ops, file));
  return good;
}

}  // namespace fathom
