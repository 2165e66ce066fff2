// Splits of one token's rows become one output without a meeting: partial results that are their own signal.
//
// A partial result (decode_combine.cuh) travels as packets of 16 bytes whose first word is never 0: it is stored
// inverted, and no conversion makes two fp16 of all ones. Packets are written and read as a whole, so who sums polls
// the data itself. There is no fence, no counter and no barrier: a warp begins its part of the final sum as soon as the
// warps of other blocks that it needs have stored theirs, and a first look at the states of the heads, one packet each
// that is stored last, keeps it from polling the bulk.
//
// What a launch left has to be zeros again before the memory serves another one. So two places take turns, and each
// launch clears what the launch before wrote, while its own rows are on their way. Number and extents are counted in
// device memory (MailCount): every block adds to the count, in such a way that a launch adds exactly 2^kMailShift,
// once all its warps have read it.
//
// Planned for grids whose blocks are resident together. With fewer places it still ends as long as blocks start in
// order and the splits of a token find places at once: whoever waits, waits for older neighbours. Where another process
// keeps them out, waiting ends with an error after some ten seconds.
#pragma once

#include "ops/device/packet.cuh"
#include "ops/sparse_attention/decode_combine.cuh"

namespace fathom::ops::sparse_decode {

inline constexpr int kMailShift = 20;
inline constexpr int64_t kMailHopeless = int64_t{1} << 34;  // cycles

/// Neighbouring slices of an m-tile that one warp owns: they share the packets of the heads' states.
template <typename G>
inline constexpr int kSlicesAWarp = 1;
template <typename G>
requires requires {
  G::kSlicesAWarp;
}
inline constexpr int kSlicesAWarp<G> = G::kSlicesAWarp;

/// A launch's turn: which place is its own, and what it has to clear in the other.
struct MailTurn {
  int own = 0;
  uint32_t left = 0;

  FATHOM_DEVICE static MailTurn load(const Params& p) {
    const device::Packet v = device::load_packet(reinterpret_cast<const device::Packet*>(p.mail));
    const int own = static_cast<int>((v.word[0] >> kMailShift) & 1);
    return {own, own ? v.word[2] : v.word[3]};
  }

  /// All threads of the block: its share of what the launch before has left.
  FATHOM_DEVICE void clear(const Params& p) const {
    const int block = (device::block_z() * device::grid_y() + device::block_y()) * device::grid_x() + device::block_x();
    std::byte* other = p.places + (own ^ 1) * p.place_bytes;
    const uint32_t stride = static_cast<uint32_t>(p.all_blocks) * (16 * kThreads);
    FATHOM_UNROLL_4
    for (uint32_t at = static_cast<uint32_t>(block * kThreads + device::thread_index()) * 16; at < left; at += stride)
      *reinterpret_cast<device::Float4*>(other + at) = {0, 0, 0, 0};
  }

  /// One thread, after a barrier behind every warp's load(): counts this block. `bytes`: of a block's mail.
  FATHOM_DEVICE void count(const Params& p, uint32_t bytes) const {
    const bool first = (device::block_x() | device::block_y() | device::block_z()) == 0;
    const auto blocks = static_cast<uint64_t>(p.all_blocks);
    if (first) p.mail->used[own] = p.all_blocks * bytes;
    device::atomic_add(&p.mail->launches, first ? (uint64_t{1} << kMailShift) + 1 - blocks : 1);
  }
};

/// The mail of a unit's splits.
template <typename G>
struct Mail {
  static constexpr int kPieces = G::kMTiles == 4 ? 2 : 1,
                       kPair = 2 * kPieces;               // packets and quads of a lane in an item
  static constexpr int kItems = G::kMTiles * 64 / kPair;  // parts of the final sum
  static constexpr int kGroups = kWarps / kSlicesAWarp<G>;
  static constexpr int kStates = G::kMTiles * kGroups * 16;
  static constexpr int kPackets = kStates + G::kQuads / 2;  // of a block
  static constexpr uint32_t kBytes = kPackets * 16;
  static_assert(kBytes <= kMostMailBytes);

  device::Packet* first;

  FATHOM_DEVICE Mail(const Params& p, const MailTurn& turn, int unit)
      : first(reinterpret_cast<device::Packet*>(p.places + turn.own * p.place_bytes) +
              static_cast<int64_t>(unit) * device::grid_x() * kPackets) {}

  /// {~reference, sum, factor of the slice, 0} of head 16 m + head.
  FATHOM_DEVICE device::Packet* state(int split, int m, int slice, int head) const {
    return first + split * kPackets + (m * kGroups + slice / kSlicesAWarp<G>)*16 + head;
  }
  /// Quads `quad` and `quad` + 1 of a lane.
  FATHOM_DEVICE device::Packet* quads(int split, int m, int slice, int quad, int lane) const {
    return first + split * kPackets + kStates + quad_index(m, slice, quad, lane) / 2;
  }
};

FATHOM_DEVICE device::Packet seal(uint64_t a, uint64_t b) {
  return {{~static_cast<uint32_t>(a), static_cast<uint32_t>(a >> 32), static_cast<uint32_t>(b),
           static_cast<uint32_t>(b >> 32)}};
}
FATHOM_DEVICE void unseal(const device::Packet& v, uint64_t& a, uint64_t& b) {
  a = ~v.word[0] | static_cast<uint64_t>(v.word[1]) << 32;
  b = v.word[2] | static_cast<uint64_t>(v.word[3]) << 32;
}
FATHOM_DEVICE device::Packet seal_state(const float* state, float factor) {
  return {{~std::bit_cast<uint32_t>(state[0]), std::bit_cast<uint32_t>(state[1]), std::bit_cast<uint32_t>(factor), 0}};
}

/// Posts the warp's slice of a block's output, whose states lie in shared memory. (A loop that store_quads() shared
/// with it changed the registers of the kernels with a pipeline.)
template <bool kFp8, typename G>
FATHOM_DEVICE void post_slice(const Shared<G>& shared, const Mail<G>& mail, Output<G>& output) {
  const int warp = device::uniform(device::thread_index() / 32), lane = device::thread_index() % 32;
  const int split = device::block_x();
  const float factor = normalise<G, kFp8>(shared.state(), output);
  device::Packet* to = mail.quads(split, 0, warp, 0, lane);
  FATHOM_UNROLL
  for (int m = 0; m < G::kMTiles; ++m) FATHOM_UNROLL
  for (int quad = 0; quad < 8; quad += 2) {
    float a[4], b[4];
    take_quad<kFp8>(output.sum[m], quad / 4, quad % 4, a);
    take_quad<kFp8>(output.sum[m], quad / 4, quad % 4 + 1, b);
    device::store_packet(to + quad_index(m, 0, quad, 0) / 2, seal(pack_quad(a), pack_quad(b)));
  }
  FATHOM_UNROLL
  for (int i = 0; i < G::kHeads; i += 32) {
    const int local = i + lane;
    if (local < G::kHeads)
      device::store_packet(mail.state(split, local / 16, warp, local % 16),
                           seal_state(shared.state() + 2 * local, factor));
  }
}
template <typename G>
FATHOM_DEVICE void post(const Shared<G>& shared, const Mail<G>& mail, Output<G>& output) {
  if (slice_is_fp8(G::kFormat, device::thread_index() / 32))
    post_slice<true>(shared, mail, output);
  else
    post_slice<false>(shared, mail, output);
}

/// All threads of a block that has nothing to post.
template <typename G>
FATHOM_DEVICE void skip_mail(const Params& p, const MailTurn& turn) {
  turn.clear(p);
  device::sync_block();
  if (device::thread_index() == 0) turn.count(p, Mail<G>::kBytes);
}

FATHOM_DEVICE void wait_for_mail(int64_t since) {
  if (device::cycles() - since > kMailHopeless) device::trap();
  device::rest();
}

/// One item of the final sum over at most kMost splits, by one warp.
template <int kMost, typename G>
FATHOM_DEVICE void collect_item(const Shared<G>& shared, const Params& p, const Mail<G>& mail, int token,
                                int first_head, int blocks, int item) {
  constexpr int kCount = kMost / 4, kPieces = Mail<G>::kPieces, kPair = Mail<G>::kPair, kAhead = 8;
  const int lane = device::thread_index() % 32, g = lane / 4, t = lane % 4;
  const int m = item * kPair / 64, slice = item * kPair / 8 % 8, quad = item * kPair % 8;
  const int local = 16 * m + 8 * (quad / 4) + g, head = first_head + local;
  const device::Packet* states = mail.state(0, m, slice, local % 16);
  const device::Packet* quads = mail.quads(0, m, slice, quad, lane);

  device::Packet state[kCount] = {}, piece[kAhead][kPieces];
  const auto fetch = [&](uint32_t which, int first) {
    FATHOM_UNROLL
    for (int i = 0; i < kAhead; ++i)
      if (which >> (first + i) & 1) {
        FATHOM_UNROLL
        for (int j = 0; j < kPieces; ++j)
          piece[i][j] = device::load_packet(quads + (first + i) * Mail<G>::kPackets + 32 * j);
      }
  };
  const int64_t start = device::cycles();
  const uint32_t all = (1u << blocks) - 1;
  for (uint32_t seen = 0;;) {
    uint32_t mine = all;
    FATHOM_UNROLL
    for (int k = 0; k < kCount; ++k)
      if (4 * k + t < blocks && state[k].word[0] == 0)
        state[k] = device::load_packet(states + (4 * k + t) * Mail<G>::kPackets);
    FATHOM_UNROLL
    for (int k = 0; k < kCount; ++k)
      if (state[k].word[0] == 0) mine &= ~(1u << (4 * k + t));
    const uint32_t now = device::common_bits_of_warp(mine);
    fetch(now & ~seen, 0);
    seen = now;
    if (seen == all) break;
    wait_for_mail(start);
  }

  SplitStates<kCount> split;
  FATHOM_UNROLL
  for (int k = 0; k < kCount; ++k) {
    const bool real = 4 * k + t < blocks;
    split.reference[k] = real ? std::bit_cast<float>(~state[k].word[0]) : -__builtin_huge_valf();
    split.sum[k] = std::bit_cast<float>(state[k].word[1]);
  }
  split.weigh(sink_of(shared, p, local));
  if (p.lse && slice == 0 && quad % 4 == 0 && t == 0 && head < p.heads)
    p.lse[token * p.lse_token_stride + head] = head_lse(split.most, split.total);
  FATHOM_UNROLL
  for (int k = 0; k < kCount; ++k) split.sum[k] *= std::bit_cast<float>(state[k].word[2]);

  float sum[kPair][4] = {};
  FATHOM_UNROLL
  for (int first = 0; first < kMost; first += kAhead) {
    if (first >= blocks) break;
    if (first > 0) fetch(all, first);
    for (;;) {  // the states were stored last, but may have been seen first
      bool lacks = false;
      FATHOM_UNROLL
      for (int i = 0; i < kAhead; ++i) FATHOM_UNROLL
      for (int j = 0; j < kPieces; ++j) lacks |= first + i < blocks && piece[i][j].word[0] == 0;
      if (!device::any_lane(lacks)) break;
      fetch(all, first);
      wait_for_mail(start);
    }
    FATHOM_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      if (first + i >= blocks) break;
      const float w = device::shuffle_from(split.sum[(first + i) / 4], 4 * g + i % 4);
      uint64_t now[kPair];
      FATHOM_UNROLL
      for (int j = 0; j < kPieces; ++j) unseal(piece[i][j], now[2 * j], now[2 * j + 1]);
      add_quads(w, now, sum);
    }
  }
  if (head >= p.heads) return;
  uint32_t word[kPair][2];
  FATHOM_UNROLL
  for (int q = 0; q < kPair; ++q) {
    word[q][0] = device::pack_bf16x2(sum[q][0], sum[q][1]);
    word[q][1] = device::pack_bf16x2(sum[q][2], sum[q][3]);
  }
  store_sums<G>(shared, p, token, head, slice, quad, word);
}

/// This block's part of the unit's final sum.
template <typename G>
FATHOM_DEVICE void collect(const Shared<G>& shared, const Params& p, const Mail<G>& mail, int token, int first_head,
                           int blocks) {
  const int warp = device::uniform(device::thread_index() / 32);
  FATHOM_UNROLL_1
  for (int item = device::block_x() * kWarps + warp; item < Mail<G>::kItems; item += blocks * kWarps)
    if (blocks <= 8)
      collect_item<8>(shared, p, mail, token, first_head, blocks, item);
    else
      collect_item<kMostMailSplits>(shared, p, mail, token, first_head, blocks, item);
}

}  // namespace fathom::ops::sparse_decode
