#include "model/mtp.h"

#include <algorithm>
#include <numeric>

#include "model/cost.h"
#include "model/layout.h"

namespace fathom {
namespace {

constexpr int64_t kPushTokens = 512;  // tokens pushed in one go: bounds the scratch memory

using cost::bytes_of;
using Kind = ops::DeviceBuffer::Kind;

}  // namespace

Mtp::Mtp(const ModelConfig& config, const Weights& weights, const ops::OpTable& ops)
    : weights_(*weights.mtp),
      embed_(weights.embed),
      head_(weights.head),
      memory_(config, false, weights.memory->device()),
      block_(config, ops, weights.memory->device()),
      pushed_(weights.memory->device()),
      started_(weights.memory->device()) {}

/// The block's input of some tokens of the present part.
void Mtp::join(View<const int32_t, 1> rows, View<bf16, 3> streams) {
  const ops::StreamJoinArgs args{token_, stream_, rows, streams};
  block_.run(block_.table().stream_join, "stream_join", args, 2 * bytes_of(streams), streams.count(), {rows.size[0]});
}

View<bf16, 3> Mtp::kept(int64_t from, int64_t count) const {
  const ModelConfig& c = block_.config();
  const int64_t row = c.hc_streams * int64_t{c.hidden_size};
  return View<bf16, 3>(reinterpret_cast<bf16*>(kept_.data()) + from * row, count, c.hc_streams, c.hidden_size);
}

void Mtp::push(const Batch& b, const LayerCache& ring) {
  const ModelConfig& c = block_.config();
  const auto row = static_cast<size_t>(c.hc_streams) * static_cast<size_t>(c.hidden_size) * sizeof(bf16);
  grow(kept_, block_.device(), static_cast<size_t>(b.ends.size[0]) * row, Kind::device);
  for (int64_t from = 0; from < b.next.size[0]; from += kPushTokens)
    push_part(b, from, std::min(kPushTokens, b.next.size[0] - from), ring);
}

void Mtp::push_part(const Batch& b, int64_t from, int64_t n, const LayerCache& ring) {
  const ModelConfig& c = block_.config();
  const int64_t d = c.hidden_size, streams = c.hc_streams;
  ids_.clear(), slots_.clear(), part_ends_.clear();
  for (int64_t i = from; i < from + n; ++i) {
    ids_.push_back(std::max(0, b.next(i)));
    slots_.push_back(b.next(i) < 0 ? -1 : b.slot(i));
  }
  int64_t ends_before = 0;
  for (int64_t i = 0; i < b.ends.size[0]; ++i) {
    if (b.ends(i) < from) ++ends_before;
    if (b.ends(i) >= from && b.ends(i) < from + n) part_ends_.push_back(static_cast<int32_t>(b.ends(i) - from));
  }
  identity_.resize(static_cast<size_t>(n));
  std::iota(identity_.begin(), identity_.end(), 0);
  auto ids = view_of(ids_), slot = view_of(slots_), all = view_of(identity_), ends = view_of(part_ends_);
  auto position = b.position.rows(from, n);
  for (auto* v : {&ids, &slot, &all, &ends, &position}) pushed_.add(*v);
  pushed_.send();

  struct Inputs {
    View<bf16, 3> embedded;
    Quantized one, four;  // of embeddings, of streams
  };
  const auto lay_out = [&](Layout& at) {
    Inputs in;
    in.embedded = at.take<bf16>(n, 1, d);
    token_ = at.take<bf16>(n, d), stream_ = at.take<bf16>(n, streams, d);
    in.one = at.quantized(n, d), in.four = at.quantized(n * streams, d);
    return in;
  };
  Layout size(nullptr);
  lay_out(size);
  grow(inputs_, block_.device(), size.used(), Kind::device);
  Layout place(inputs_.data());
  const auto [embedded, one, four] = lay_out(place);

  block_.act = memory_.get(n, 0);
  Activations& act = block_.act;
  const ops::EmbedArgs embed{embed_, ids, embedded};
  block_.run(block_.table().embed, "embed", embed, bytes_of(embedded), 0, {n, d});
  block_.quantize(View<const bf16, 2>(embedded.data, n, d), weights_.enorm, one);
  block_.linear_fp8(one, weights_.e_proj, token_);
  block_.quantize(View<const bf16, 2>(b.streams.rows(from, n).data, n * streams, d), weights_.hnorm, four);
  block_.linear_fp8(four, weights_.h_proj, View<bf16, 2>(stream_.data, n * streams, d));
  if (ends.size[0] > 0) join(ends, kept(ends_before, ends.size[0]));
  join(all, act.streams);
  block_.mix(&weights_.block.attn_mix, false);
  block_.linear_fp8(act.xq, weights_.block.attn.wkv, act.kv);
  block_.write_window(weights_.block, position, slot, ring.window, ring.format);
}

/// Logits of each start, and its token where the device draws.
void Mtp::run(std::span<const Start> starts, const LayerCache& ring) {
  const auto n = static_cast<int64_t>(starts.size());
  ops::ComputeDevice& device = block_.device();
  const int64_t width = block_.config().window;
  ids_.clear(), positions_.clear(), window_length_.clear(), draws_.clear();
  window_index_.assign(static_cast<size_t>(n * width), -1);
  nowhere_.assign(static_cast<size_t>(n), -1);
  identity_.resize(static_cast<size_t>(n));
  std::iota(identity_.begin(), identity_.end(), 0);
  for (size_t i = 0; i < starts.size(); ++i) {
    const Start& s = starts[i];
    ids_.push_back(s.token), positions_.push_back(s.position), draws_.push_back(s.draw);
    window_length_.push_back(static_cast<int32_t>(s.window_rows.size()));
    std::copy(s.window_rows.begin(), s.window_rows.end(), window_index_.begin() + static_cast<int64_t>(i) * width);
  }
  auto ids = view_of(ids_), position = view_of(positions_), length = view_of(window_length_), rows = view_of(identity_),
       nowhere = view_of(nowhere_);
  View<const int32_t, 2> window(window_index_.data(), n, width);
  auto draws = view_of(draws_);
  for (auto* v : {&ids, &position, &length, &rows, &nowhere}) started_.add(*v);
  started_.add(window), started_.add(draws);
  started_.send();

  block_.act = memory_.get(n, n);
  Activations& act = block_.act;
  for (int64_t i = 0; i < n;) {  // starts that are neighbours among the ends are copied together
    int64_t count = 1;
    const int64_t first = starts[static_cast<size_t>(i)].end;
    while (i + count < n && starts[static_cast<size_t>(i + count)].end == first + count) ++count;
    const auto from = kept(first, count);
    device.copy(act.streams.rows(i, count).data, from.data, static_cast<size_t>(bytes_of(from)));
    i += count;
  }
  const BlockWeights& w = weights_.block;
  block_.mix(&w.attn_mix, false);
  block_.project_latents(w.attn);
  block_.project_queries(w.attn);
  block_.attention_inputs(w, position, nowhere, ring.window, ring.format);  // its own row is there already
  block_.attend(w, position, {ring.window, window, length}, {}, ring.format);
  block_.project_output(w.attn, &w.ffn_mix);
  block_.mix(&w.ffn_mix, true);
  block_.moe(ids, w.moe);
  block_.mix(nullptr, true);
  block_.head(weights_.head, head_, rows);
  if (!device.shares_host_memory()) block_.choose(draws);
}

std::vector<int32_t> Mtp::propose(std::span<const Start> starts, const LayerCache& ring, const Choose& choose) {
  if (starts.empty()) return {};
  run(starts, ring);
  ops::ComputeDevice& device = block_.device();
  const Activations& act = block_.act;
  std::vector<int32_t> tokens(starts.size());
  if (device.shares_host_memory()) {
    const auto vocabulary = static_cast<size_t>(head_.size[0]);
    for (size_t i = 0; i < starts.size(); ++i)
      tokens[i] = choose(i, std::span<const float>(act.logits[static_cast<int64_t>(i)].data, vocabulary));
    return tokens;
  }
  const size_t bytes = tokens.size() * sizeof(int32_t);
  grow(fetched_, device, bytes, Kind::host);
  device.download(fetched_.data(), act.token.data, bytes);
  const auto* drawn = reinterpret_cast<const int32_t*>(fetched_.data());
  std::copy_n(drawn, tokens.size(), tokens.begin());
  return tokens;
}

void Mtp::prepare(int64_t sequences, const LayerCache& ring) {
  ops::ComputeDevice& device = block_.device();
  if (device.shares_host_memory()) return;
  const ModelConfig& c = block_.config();
  const std::vector<int32_t> zeros(kPushTokens, 0), nowhere(kPushTokens, -1);
  {
    const ops::DeviceBuffer streams(device,
                                    static_cast<size_t>(kPushTokens * c.hc_streams * c.hidden_size) * sizeof(bf16));
    Batch b;
    b.streams =
        View<const bf16, 3>(reinterpret_cast<const bf16*>(streams.data()), kPushTokens, c.hc_streams, c.hidden_size);
    b.next = b.position = view_of(zeros), b.slot = view_of(nowhere);
    std::vector<int32_t> ends(static_cast<size_t>(std::min(sequences, kPushTokens)));
    std::iota(ends.begin(), ends.end(), 0);
    b.ends = view_of(ends);
    push(b, ring);
    device.synchronize("preparing drafts");
  }
  const auto row = static_cast<size_t>(c.hc_streams) * static_cast<size_t>(c.hidden_size) * sizeof(bf16);
  grow(kept_, device, static_cast<size_t>(sequences) * row, Kind::device);
  run(std::vector<Start>(static_cast<size_t>(sequences)), ring);
  // Some ops want more scratch memory for fewer tokens, until the blocks of one token each fill the device.
  for (int64_t n = std::min<int64_t>(sequences - 1, device.info().sm_count); n > 0; --n)
    run(std::vector<Start>(static_cast<size_t>(n)), ring);
  grow(fetched_, device, static_cast<size_t>(sequences) * sizeof(int32_t), Kind::host);
  device.synchronize("preparing drafts");
}

}  // namespace fathom
