// What the two warpgroup kernels share: decoding codes to 16-bit values, queries in shared memory, output fragments.
//
// fp16 holds code * 2^(scale byte - 121) exactly for scale bytes 109..127 and to 2^-25 of the unit down to 105, the
// smallest that the cache's quantiser writes; queries and RoPE channels too lie well inside its range. When some value
// does not fit, the block finds out while it works, and does its work again in bf16.
#pragma once

#include "ops/device/gpu.cuh"
#include "ops/device/mma_fp8.cuh"
#include "ops/sparse_attention/decode_kernel.cuh"
#include "ops/sparse_attention/decode_mail.cuh"

namespace fathom::ops::sparse_decode::wide {

inline constexpr int kHeadsOfBlock = 64;
inline constexpr int kUnit = 121, kLowestScale = 105, kHighestScale = 127;
inline constexpr float kUnitValue = 0.015625f;                // 2^(kUnit - 127)
inline constexpr int kQueryChunkBytes = kHeadsOfBlock * 128;  // 64 heads x 64 channels

/// Offset of 16-byte piece `piece` of row `row` in a chunk.
FATHOM_DEVICE int swizzle(int row, int piece) {
  return row * 128 + ((piece ^ (row & 7)) << 4);
}

/// Whether half of an fp16 pair lies above 2^15, where a mean of such values might round to infinity.
FATHOM_DEVICE bool overflows_f16(uint32_t pair) {
  return ((((pair & 0x7FFF7FFFu) + 0x08000800u)) & 0x80008000u) != 0;
}

/// bf16 pair times a power of two -> fp16 pair.
FATHOM_DEVICE uint32_t bf16x2_to_f16x2(uint32_t pair, float factor) {
  return device::pack_f16x2(std::bit_cast<float>(pair << 16) * factor,
                            std::bit_cast<float>(pair & 0xFFFF0000u) * factor);
}

/// fp16x2 factor 2^(scale - kUnit) for scale bytes of at least kLowestScale.
FATHOM_DEVICE uint32_t half_factor(int scale) {
  const int shift = scale - kUnit;
  return (shift >= -14 ? (15 + shift) << 10 : shift >= -24 ? 1 << (24 + shift) : 0) * 0x00010001u;
}

/// Pairs of codes of one scale (in the lower half of each word), whose half_factor() is `half`, -> pairs of 16-bit
/// values.
template <bool kHalf, int kCount>
FATHOM_DEVICE void decode_pairs(const uint32_t (&pair)[kCount], int scale, uint32_t half, uint32_t (&out)[kCount]) {
  const float factor = to_float(e8m0{static_cast<uint8_t>(scale)});
  FATHOM_UNROLL
  for (int k = 0; k < kCount; ++k) {
    out[k] = device::e4m3_pair_to_f16x2(pair[k]);
    if (kHalf) {
      out[k] = device::multiply_f16x2(out[k], half);
    } else {
      float low, high;
      device::unpack_f16x2(out[k], &low, &high);
      out[k] = device::pack_bf16x2(low * factor, high * factor);
    }
  }
}

/// 8 RoPE channels -> 16-bit values in place. Returns whether fp16 could not hold something.
template <bool kHalf>
FATHOM_DEVICE bool decode_rope_piece(uint32_t (&word)[4]) {
  bool bad = false;
  if (kHalf) {
    FATHOM_UNROLL
    for (int k = 0; k < 4; ++k) {
      word[k] = bf16x2_to_f16x2(word[k], 64.0f);  // 2^(127 - kUnit)
      bad |= overflows_f16(word[k]);
    }
  }
  return bad;
}
static_assert(127 - kUnit == 6);

/// Where a thread's `i`-th 16-byte piece of the queries lies, in chunks of 64 channels from `queries` on: of head
/// `local`, channels 8 piece ..
struct QueryPiece {
  int local, piece;
  std::byte* at;

  FATHOM_DEVICE QueryPiece(std::byte* queries, int i) {
    const int item = i * 2 * device::kWarpgroup + device::thread_index();
    local = item / 64, piece = item % 64;
    at = queries + piece / 8 * kQueryChunkBytes + swizzle(local, piece % 8);
  }
};
inline constexpr int kQueryPieces = kHeadsOfBlock * 64 / (2 * device::kWarpgroup);

/// Asks for the queries of the block, as they are; the first two warpgroups.
FATHOM_DEVICE void ask_for_queries(std::byte* queries, const Params& p, int token, int first_head) {
  FATHOM_UNROLL_4
  for (int i = 0; i < kQueryPieces; ++i) {
    const QueryPiece place(queries, i);
    const int head = first_head + place.local;
    const bool present = head < p.heads;
    const uint16_t* from = present ? p.q + token * p.q_token_stride + head * p.q_head_stride : p.q;
    device::copy_async_16(place.at, from + place.piece * 8, present);
  }
  device::copy_async_commit();
}

/// Once they are there: turns them into fp16, each thread the pieces that it asked for, or leaves them as they are.
/// Returns whether fp16 could not hold something.
template <bool kHalf>
FATHOM_DEVICE bool convert_queries(std::byte* queries) {
  device::copy_async_wait<0>();
  if (!kHalf) return false;
  uint32_t most = 0;
  FATHOM_UNROLL_4
  for (int i = 0; i < kQueryPieces; ++i) {
    const QueryPiece place(queries, i);
    uint32_t word[4];
    device::Float4 v = *reinterpret_cast<const device::Float4*>(place.at);
    __builtin_memcpy(word, &v, sizeof(word));
    FATHOM_UNROLL
    for (int k = 0; k < 4; ++k) {
      most = device::largest_halves(most, word[k] & 0x7FFF7FFFu);
      word[k] = device::pack_f16x2(low_channel(word[k]), high_channel(word[k]));
    }
    __builtin_memcpy(&v, word, sizeof(v));
    *reinterpret_cast<device::Float4*>(place.at) = v;
  }
  constexpr uint32_t kLimit = 0x4700;  // 2^15 as bf16
  return (most & 0xFFFF) >= kLimit || most >> 16 >= kLimit;
}

/// Half the output: 64 heads x 256 channels of a warpgroup. Register 4 j + i: column tile j.
struct WideOutput {
  float sum[128];

  FATHOM_DEVICE void clear() {
    FATHOM_UNROLL
    for (int i = 0; i < 128; ++i) sum[i] = 0;
  }
  FATHOM_DEVICE void scale_by(float top, float bottom) {
    FATHOM_UNROLL
    for (int i = 0; i < 128; ++i) sum[i] *= i & 2 ? bottom : top;
  }
};

/// Quad (half, j) of slice s (0..3 of the warpgroup's four): as Layout's output fragments.
FATHOM_DEVICE void take_wide_quad(const WideOutput& o, int s, int half, int j, float factor, float (&v)[4]) {
  FATHOM_UNROLL
  for (int k = 0; k < 4; ++k) v[k] = o.sum[4 * (8 * s + 2 * j + (k >> 1)) + 2 * half + (k & 1)] * factor;
}

/// What brings a warp's output, divided by its heads' sums, into the range of fp16: factors of heads g and g + 8 of its
/// 16, and what 1 stands for then. In half mode the units are right for that, else the warp looks for its largest
/// value.
template <bool kHalf>
FATHOM_DEVICE void divide_output(const float* states, int m, const WideOutput& output, float (&inverse)[2],
                                 float& unit) {
  const int g = device::thread_index() % 32 / 4;
  unit = kUnitValue;
  FATHOM_UNROLL
  for (int half = 0; half < 2; ++half) {
    const float sum = states[2 * (16 * m + 8 * half + g) + 1];
    inverse[half] = sum > 0 ? device::reciprocal_approx(sum) : 0.0f;
  }
  if (!kHalf) {
    float most = 0;
    FATHOM_UNROLL
    for (int i = 0; i < 128; ++i) {
      const float v = fabsf(output.sum[i] * inverse[i >> 1 & 1]);
      most = v > most ? v : most;
    }
    const int room = headroom(std::bit_cast<float>(device::largest_of_warp(std::bit_cast<uint32_t>(most))));
    inverse[0] *= power_of_two(room), inverse[1] *= power_of_two(room);
    unit = power_of_two(-room);
  }
}

/// Consumers: the output divided by its heads' sums, as fp16.
template <bool kHalf, typename L>
FATHOM_DEVICE void leave_quads(const Partials<L>& partials, int split, const float* states, const WideOutput& output) {
  const int warp = device::uniform(device::thread_index() / 32), lane = device::thread_index() % 32;
  const int group = warp / 4, m = warp % 4;
  float inverse[2], unit;
  divide_output<kHalf>(states, m, output, inverse, unit);
  uint64_t* to = partials.quads(split) + quad_index(m, 4 * group, 0, lane);
  FATHOM_UNROLL
  for (int s = 0; s < 4; ++s) FATHOM_UNROLL
  for (int quad = 0; quad < 8; quad += 2) {
    float v[4], w[4];
    take_wide_quad(output, s, quad / 4, quad % 4, inverse[quad / 4], v);
    take_wide_quad(output, s, quad / 4, quad % 4 + 1, inverse[quad / 4], w);
    store_two(to + quad_index(0, s, quad, 0), pack_quad(v), pack_quad(w));
  }
  if (lane < 4) *partials.factor(split, m, 4 * group + lane) = unit;
}

/// The same by mail, with the states of the warp's heads. (A loop of its own for the same reason as post_slice().)
template <bool kHalf, typename L>
FATHOM_DEVICE void post_quads(const Mail<L>& mail, const float* states, const WideOutput& output) {
  const int warp = device::uniform(device::thread_index() / 32), lane = device::thread_index() % 32;
  const int split = device::block_x(), group = warp / 4, m = warp % 4;
  float inverse[2], unit;
  divide_output<kHalf>(states, m, output, inverse, unit);
  device::Packet* to = mail.quads(split, m, 4 * group, 0, lane);
  FATHOM_UNROLL
  for (int s = 0; s < 4; ++s) FATHOM_UNROLL
  for (int quad = 0; quad < 8; quad += 2) {
    float v[4], w[4];
    take_wide_quad(output, s, quad / 4, quad % 4, inverse[quad / 4], v);
    take_wide_quad(output, s, quad / 4, quad % 4 + 1, inverse[quad / 4], w);
    device::store_packet(to + quad_index(0, s, quad, 0) / 2, seal(pack_quad(v), pack_quad(w)));
  }
  if (lane < 16)
    device::store_packet(mail.state(split, m, 4 * group, lane), seal_state(states + 2 * (16 * m + lane), unit));
}

/// Consumers, of a block that is alone: the output as rounded rows in shared memory.
template <bool kHalf, typename L>
FATHOM_DEVICE void round_output(const Shared<L>& shared, const Params& p, const float* states,
                                const WideOutput& output) {
  const int warp = device::uniform(device::thread_index() / 32), lane = device::thread_index() % 32, g = lane / 4,
            t = lane % 4;
  const int group = warp / 4, m = warp % 4;
  FATHOM_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int local = 16 * m + 8 * half + g;
    const float factor =
        head_factor(sink_of(shared, p, local), states[2 * local], states[2 * local + 1]) * (kHalf ? kUnitValue : 1);
    std::byte* row = shared.base + local * kRowBytes + group * 512;
    FATHOM_UNROLL
    for (int j = 0; j < 32; ++j)
      *reinterpret_cast<uint32_t*>(row + (kPermuted<L> ? 32 * (j / 4) + 8 * t + 2 * (j % 4) : 8 * j + 2 * t) * 2) =
          device::pack_bf16x2(output.sum[4 * j + 2 * half] * factor, output.sum[4 * j + 2 * half + 1] * factor);
  }
}

}  // namespace fathom::ops::sparse_decode::wide
