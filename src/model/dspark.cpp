#include "model/dspark.h"

#include <algorithm>

#include "base/error.h"
#include "model/cost.h"
#include "model/layout.h"

namespace fathom {
namespace {

constexpr int64_t kPageRows = 64;      // of the block tokens' own rows
constexpr int64_t kPushTokens = 512;   // tokens pushed in one go: bounds the scratch memory
constexpr size_t kMostRecorded = 128;  // passes
constexpr int64_t kSequenceCounts[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64};

/// Numbers of sequences that passes are recorded for: the next larger one of few; beyond those the number itself.
int64_t rounded_up(int64_t sequences) {
  const auto* at = std::lower_bound(std::begin(kSequenceCounts), std::end(kSequenceCounts), sequences);
  return at == std::end(kSequenceCounts) ? sequences : *at;
}

}  // namespace

using cost::bytes_of;
using Kind = ops::DeviceBuffer::Kind;

Dspark::Dspark(const ModelConfig& config, const Weights& weights, const ops::OpTable& ops, dist::Communicator* rank)
    : draft_(*config.dspark),
      weights_(*weights.dspark),
      embed_(weights.embed),
      head_(weights.head),
      memory_(config, false, weights.memory->device(), weights.shard),
      block_(config, ops, weights.memory->device()),
      pushed_(weights.memory->device()),
      started_(weights.memory->device()) {
  block_.set_communicator(rank);
}

void Dspark::push(View<const bf16, 2> features, View<const int32_t, 1> position, View<const int32_t, 1> slot,
                  std::span<const LayerCache> stages) {
  const int64_t tokens = features.size[0], width = features.size[1];
  pushed_.add(position), pushed_.add(slot);
  pushed_.send();
  for (int64_t from = 0; from < tokens; from += kPushTokens) {
    const int64_t n = std::min(kPushTokens, tokens - from);
    block_.act = memory_.get(n, 0);
    Activations& act = block_.act;
    grow(wide_, block_.device(), static_cast<size_t>(kPushTokens * (width + width / 128)), Kind::device);
    const Quantized wide{View<e4m3, 2>(reinterpret_cast<e4m3*>(wide_.data()), n, width),
                         View<e8m0, 2>(reinterpret_cast<e8m0*>(wide_.data() + kPushTokens * width), n, width / 128)};
    block_.quantize(features.rows(from, n), {}, wide);
    block_.linear_fp8(wide, weights_.main_proj, act.y);
    // The main norm's result is rounded to bf16 before it is quantised, as every RMSNorm is.
    block_.quantize(act.y, weights_.main_norm, act.xq);
    for (size_t i = 0; i < stages.size(); ++i) {
      const BlockWeights& w = weights_.stages[i];
      block_.linear_fp8(act.xq, w.attn.wkv, act.kv);
      block_.write_window(w, position.rows(from, n), slot.rows(from, n), stages[i].window, stages[i].format);
    }
  }
}

/// The arrays of a pass, on the device. Sequences that fill up to `sequences` start like the first, without a window.
Dspark::Pass Dspark::lay_out(std::span<const Start> starts, int64_t sequences, int64_t places) {
  const int64_t block = draft_.block_size, tokens = sequences * block, window = block_.config().window;
  for (auto* v : {&ids_, &position_, &slot_, &window_length_, &own_index_, &rows_, &first_}) v->clear();
  own_length_.assign(static_cast<size_t>(tokens), static_cast<int32_t>(block));
  window_index_.assign(static_cast<size_t>(tokens * window), -1);
  sampling_.assign(static_cast<size_t>(places * sequences), {});
  for (int64_t r = 0; r < sequences; ++r) {
    const bool real = r < static_cast<int64_t>(starts.size());
    const Start& s = starts[real ? static_cast<size_t>(r) : 0];
    const auto seen = real ? s.window_rows : std::span<const int32_t>();
    first_.push_back(s.token);
    for (int64_t i = 0; i < block; ++i) {
      ids_.push_back(i == 0 ? s.token : draft_.noise_token_id);
      position_.push_back(s.position + 1 + static_cast<int32_t>(i));
      slot_.push_back(static_cast<int32_t>(r * block + i));
      window_length_.push_back(static_cast<int32_t>(seen.size()));
      std::copy(seen.begin(), seen.end(), window_index_.begin() + (r * block + i) * window);
      for (int64_t k = 0; k < block; ++k) own_index_.push_back(static_cast<int32_t>(r * block + k));
    }
    for (int64_t i = 0; i < std::min<int64_t>(places, static_cast<int64_t>(s.draws.size())); ++i)
      sampling_[static_cast<size_t>(i * sequences + r)] = s.draws[static_cast<size_t>(i)];
  }
  for (int64_t i = 0; i < places; ++i)
    for (int64_t r = 0; r < sequences; ++r) rows_.push_back(static_cast<int32_t>(r * block + i));

  Pass p;
  p.sequences = sequences, p.places = places;
  p.ids = view_of(ids_), p.position = view_of(position_), p.slot = view_of(slot_);
  p.window_length = view_of(window_length_), p.own_length = view_of(own_length_);
  p.window_index = View<const int32_t, 2>(window_index_.data(), tokens, window);
  p.own_index = View<const int32_t, 2>(own_index_.data(), tokens, block);
  p.rows = view_of(rows_), p.first = view_of(first_), p.sampling = view_of(sampling_);
  for (auto* v : {&p.ids, &p.position, &p.slot, &p.window_length, &p.own_length, &p.rows, &p.first}) started_.add(*v);
  started_.add(p.window_index), started_.add(p.own_index), started_.add(p.sampling);
  started_.send();

  ops::ComputeDevice& device = block_.device();
  const int64_t pages = (tokens + kPageRows - 1) / kPageRows;
  const auto own = static_cast<size_t>(pages * ops::page_bytes(ops::RowFormat::v4, kPageRows));
  const auto drafted = static_cast<size_t>(2 * places * sequences) * sizeof(int32_t);
  if (grow(own_, device, own, Kind::device)) ++own_generation_;
  if (grow(drafted_, device, drafted, Kind::device)) ++own_generation_;
  grow(fetched_, device, drafted, Kind::host);
  return p;
}

void Dspark::stage(const BlockWeights& w, const LayerCache& cache, const Pass& p) {
  const ops::KvPool own{own_.data(), ops::page_bytes(cache.format, kPageRows), kPageRows};
  block_.project_latents(w.attn);
  block_.project_queries(w.attn);
  block_.attention_inputs(w, p.position, p.slot, own, cache.format);
  block_.attend(w, p.position, {cache.window, p.window_index, p.window_length}, {own, p.own_index, p.own_length},
                cache.format);
  block_.project_output(w.attn, &w.ffn_mix);
  block_.mix(&w.ffn_mix, true);
  block_.moe(p.ids, w.moe);
}

void Dspark::run_blocks(const Pass& p, std::span<const LayerCache> stages) {
  block_.act = memory_.get(p.ids.size[0], p.rows.size[0]);
  block_.embed(embed_, p.ids);
  for (size_t i = 0; i < stages.size(); ++i) {
    block_.mix(&weights_.stages[i].attn_mix, i > 0);
    stage(weights_.stages[i], stages[i], p);
  }
  block_.mix(nullptr, true);
  block_.head(weights_.head, head_, p.rows);
}

/// Adds to the logits of a place what the tokens before it say.
void Dspark::markov(int64_t place, int64_t sequences, View<const int32_t, 1> previous, View<float, 1> confidence) {
  Activations& act = block_.act;
  ops::MarkovArgs m;
  m.token = previous;
  m.w1 = weights_.markov_w1, m.w2 = weights_.markov_w2;
  m.hidden = act.hidden.rows(place * sequences, sequences), m.confidence = weights_.confidence;
  m.logits = act.logits.rows(place * sequences, sequences), m.confidence_logit = confidence;
  block_.run(block_.table().markov, "markov", m, bytes_of(m.w2), 2 * sequences * m.w2.count(),
             {sequences, m.w2.size[1], block_.config().vocab_size});
}

/// Draws place behind place on the device.
void Dspark::draw(const Pass& p) {
  const int64_t n = p.sequences;
  auto* const tokens = reinterpret_cast<int32_t*>(drafted_.data());
  auto* const confidence = reinterpret_cast<float*>(tokens + p.places * n);
  View<const int32_t, 1> previous = p.first;
  for (int64_t i = 0; i < p.places; ++i) {
    markov(i, n, previous, View<float, 1>(confidence + i * n, n));
    const View<int32_t, 1> drawn(tokens + i * n, n);
    const ops::ChooseArgs args{block_.act.logits.rows(i * n, n), p.sampling.rows(i * n, n), drawn};
    block_.run(block_.table().choose, "choose", args, bytes_of(args.logits), 0, {n, block_.config().vocab_size});
    previous = drawn;
  }
}

void Dspark::run_recorded(const Pass& p, std::span<const LayerCache> stages, bool record) {
  const auto same = [&](const Recorded& r) {
    return r.sequences == p.sequences && r.places == p.places && r.stages == stages.data();
  };
  const auto now = [&] {
    return std::array<int64_t, 3>{memory_.generation(), block_.workspace_generation(),
                                  started_.generation() + own_generation_};
  };
  const auto pass = [&] {
    run_blocks(p, stages);
    if (leads()) draw(p);
  };
  record = record && !block_.recorder();
  recorded_anew_ = false;
  if (record && generation_ == now()) {
    const auto at = std::find_if(recorded_.begin(), recorded_.end(), same);
    if (at != recorded_.end()) return at->graph->replay();
  }
  pass();
  if (generation_ != now()) recorded_.clear(), generation_ = now();  // they point to memory that is gone
  if (!record || recorded_.size() >= kMostRecorded) return;
  auto graph = block_.device().capture(pass);
  if (graph) recorded_.push_back({p.sequences, p.places, stages.data(), std::move(graph)});
  recorded_anew_ = true;
}

std::vector<Dspark::Proposal> Dspark::choose_on_host(std::span<const Start> starts, const Pass& p,
                                                     const Choose& choose) {
  const int64_t n = p.sequences, vocabulary = block_.config().vocab_size;
  std::vector<Proposal> out(starts.size());
  std::vector<int32_t> previous = first_;
  std::vector<uint8_t> ended(starts.size(), 0);
  std::vector<float> confidence(starts.size());
  for (int64_t i = 0; i < p.places; ++i) {
    for (size_t r = 0; r < starts.size(); ++r) ended[r] = ended[r] || i >= starts[r].most;
    if (std::all_of(ended.begin(), ended.end(), [](uint8_t e) { return e != 0; })) break;
    markov(i, n, view_of(previous), View<float, 1>(confidence.data(), n));
    for (size_t r = 0; r < starts.size(); ++r) {
      if (ended[r]) continue;
      const float* logits = &block_.act.logits(i * n + static_cast<int64_t>(r), 0);
      const int32_t token = choose(r, i, std::span<const float>(logits, static_cast<size_t>(vocabulary)));
      ended[r] = token < 0 || token >= vocabulary;
      if (token < 0) continue;
      out[r].tokens.push_back(token), out[r].confidence_logit.push_back(confidence[r]);
      if (!ended[r]) previous[r] = token;
    }
  }
  return out;
}

std::vector<Dspark::Proposal> Dspark::fetch(std::span<const Start> starts, const Pass& p) {
  const int64_t n = p.sequences;
  block_.device().download(fetched_.data(), drafted_.data(), static_cast<size_t>(2 * p.places * n) * sizeof(int32_t));
  const auto* tokens = reinterpret_cast<const int32_t*>(fetched_.data());
  const auto* confidence = reinterpret_cast<const float*>(tokens + p.places * n);
  std::vector<Proposal> out(starts.size());
  for (size_t r = 0; r < starts.size(); ++r)
    for (int64_t i = 0; i < std::min(p.places, starts[r].most); ++i) {
      const int64_t at = i * n + static_cast<int64_t>(r);
      if (tokens[at] < 0) break;  // logits that are not numbers, or a draw that is the host's
      out[r].tokens.push_back(tokens[at]), out[r].confidence_logit.push_back(confidence[at]);
    }
  return out;
}

std::vector<Dspark::Proposal> Dspark::propose(std::span<const Start> starts, std::span<const LayerCache> stages,
                                              const Choose& choose, bool record) {
  int64_t places = 0;
  for (const Start& s : starts) places = std::max(places, s.most);
  places = std::min<int64_t>(places, draft_.block_size);
  if (places <= 0) return std::vector<Proposal>(starts.size());
  const auto n = static_cast<int64_t>(starts.size());
  if (block_.device().shares_host_memory()) {
    const Pass pass = lay_out(starts, n, places);
    run_blocks(pass, stages);
    return leads() ? choose_on_host(starts, pass, choose) : std::vector<Proposal>();
  }
  const Pass pass = lay_out(starts, rounded_up(n), places);
  run_recorded(pass, stages, record);
  return leads() ? fetch(starts, pass) : std::vector<Proposal>();
}

void Dspark::prepare(int64_t sequences, std::span<const LayerCache> stages) {
  ops::ComputeDevice& device = block_.device();
  if (device.shares_host_memory()) return;
  const auto width = static_cast<int64_t>(draft_.target_layers.size()) * block_.config().hidden_size;
  {
    const ops::DeviceBuffer features(device, static_cast<size_t>(kPushTokens * width) * sizeof(bf16));
    const std::vector<int32_t> zeros(kPushTokens, 0), nowhere(kPushTokens, -1);
    push(View<const bf16, 2>(reinterpret_cast<const bf16*>(features.data()), kPushTokens, width), view_of(zeros),
         view_of(nowhere), stages);
    device.synchronize("preparing drafts");
  }
  const Start idle{};
  int64_t largest = rounded_up(sequences);
  lay_out({&idle, 1}, largest, draft_.block_size);  // the arrays' memory
  for (const bool record : {false, true}) {         // first all scratch memory, which no rank must wait for
    block_.set_dry(!record);
    for (int64_t n = 1;; n = std::min(largest, rounded_up(n + 1))) {
      for (int64_t places = record ? 1 : draft_.block_size; places <= draft_.block_size; ++places)
        run_recorded(lay_out({&idle, 1}, n, places), stages, record);
      if (n >= largest) break;
    }
  }
  device.synchronize("preparing drafts");
}

}  // namespace fathom
