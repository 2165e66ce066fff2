// Products of matrices y = x . w^T with w decoded on the fly.
//
// The order of additions of one y[m, n] is fixed: per 512 columns, four lane sums in column order, then
// (l0 + l2) + (l1 + l3), then the partial results in order. It depends on the columns alone, so a row of y has the same
// bits whatever the number of rows, and whichever kernel computes it.
#include "ops/cpu/product.h"

// The order of these matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/product.cpp"
#include "ops/cpu/targets.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "hwy/cache_control.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/simd-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace fathom::ops::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR
using cpu::Codec;
using cpu::Matrix;

inline constexpr int64_t kDepth = 512;                  // columns of one partial sum
inline constexpr int64_t kGroup = kLanes;               // rows of w that a tile covers
inline constexpr int kTileRows = kLanes == 16 ? 6 : 3;  // rows of x that a tile covers
/// Row pitch of fp32 x in columns, and of y: whole chunks and whole groups.
inline int64_t x_pitch(int64_t columns) {
  return cpu::round_up(columns, 32);
}

constexpr int64_t chunk_columns(Codec c) {  // columns in 16 bytes
  return c == Codec::f32 ? 4 : c == Codec::bf16 ? 8 : c == Codec::fp8 ? 16 : 32;
}

/// Row r = 4 b + i of a group lies in block b of vector i.
struct RowGroup {
  const uint8_t* codes[16];
  const uint8_t* scale[16];
  float global = 1;
  int64_t row_bytes = 0;  // of codes
  int64_t ahead = 0;      // bytes from these rows to those that come next
};

inline RowGroup row_group(const Matrix& w, int64_t first, int64_t groups = 1) {
  RowGroup g;
  g.global = w.global;
  g.row_bytes = w.columns * 16 / chunk_columns(w.codec);
  g.ahead = groups * kGroup * w.row_bytes;
  for (int64_t r = 0; r < kGroup; ++r) {
    const int64_t n = std::min(first + r, w.rows - 1);
    g.codes[r] = w.codes + n * w.row_bytes;
    g.scale[r] = w.scale ? w.scale + ((n + w.scale_offset) >> w.scale_shift) * w.scale_bytes : nullptr;
  }
  return g;
}

/// 16 bytes of each of the rows 4 b + i.
HWY_INLINE hn::Vec<U8<DF>> load_rows(const uint8_t* const* rows, int64_t i, int64_t offset) {
  const hn::FixedTag<uint8_t, 16> d16;
  return from_blocks(U8<DF>(), [&](int64_t b) HWY_ATTR { return hn::LoadU(d16, rows[4 * b + i] + offset); });
}

/// The same of the last columns of a row, zeros behind them.
HWY_INLINE hn::Vec<U8<DF>> load_rows_tail(const uint8_t* const* rows, int64_t i, int64_t offset, int64_t bytes) {
  alignas(64) uint8_t part[4 * kLanes] = {};
  for (int64_t b = 0; b < kBlocks; ++b)
    std::memcpy(part + 16 * b, rows[4 * b + i] + offset, static_cast<size_t>(bytes));
  return hn::Load(U8<DF>(), part);
}

/// Scales of 128 columns of the four vectors of a group.
template <Codec C>
struct Scales {
  VF value[4];  // fp8

  HWY_INLINE void load(const RowGroup& g, int64_t column) {
    const DF d;
    const auto at = [&](int64_t r) { return to_float(e8m0{g.scale[r][column / 128]}) * kE4m3Unit; };
    if (g.scale[0] == g.scale[kGroup - 1]) {
      value[0] = value[1] = value[2] = value[3] = hn::Set(d, at(0));
      return;
    }
    alignas(64) float lanes[kLanes];
    for (int64_t i = 0; i < 4; ++i) {
      for (int64_t l = 0; l < kLanes; ++l) lanes[l] = at(l / 4 * 4 + i);
      value[i] = hn::Load(d, lanes);
    }
  }
  HWY_INLINE VF of(int64_t i, int64_t) const { return value[i]; }
};

template <>
struct Scales<Codec::mxfp4> {
  hn::Vec<U32<DF>> codes[4];  // the four scales of a row's 128 columns in every lane of its block

  HWY_INLINE void load(const RowGroup& g, int64_t column) {
    const hn::FixedTag<uint32_t, 4> d4;
    for (int64_t i = 0; i < 4; ++i) {
      codes[i] = from_blocks(U32<DF>(), [&](int64_t b) HWY_ATTR {
        uint32_t four;
        std::memcpy(&four, g.scale[4 * b + i] + column / 32, 4);
        return hn::Set(d4, four);
      });
    }
  }
  HWY_INLINE VF of(int64_t i, int64_t chunk) const {
    const U32<DF> d;
    const auto up = hn::ShiftLeftSame(codes[i], static_cast<int>(24 - 8 * chunk));
    return hn::BitCast(DF(), hn::And(hn::ShiftRight<1>(up), hn::Set(d, 0x7F800000u)));
  }
};

template <>
struct Scales<Codec::nvfp4> {
  const RowGroup* group;
  int64_t column;

  HWY_INLINE void load(const RowGroup& g, int64_t at) { group = &g, column = at; }
  HWY_INLINE VF of(int64_t i, int64_t chunk) const {
    alignas(64) float lanes[kLanes];
    for (int64_t l = 0; l < kLanes; ++l) {
      const uint8_t* s = group->scale[l / 4 * 4 + i] + (column + 32 * chunk) / 16;
      lanes[l] = to_float(e4m3{s[l % 4 / 2]});
    }
    return hn::Load(DF(), lanes);
  }
};

template <Codec C>
HWY_INLINE void decode_chunk(hn::Vec<U8<DF>> bytes, const Scales<C>& scales, int64_t i, int64_t chunk, VF* out) {
  const DF d;
  if constexpr (C == Codec::f32) {
    out[0] = hn::BitCast(d, bytes);
  } else if constexpr (C == Codec::bf16) {
    split_bf16(d, hn::BitCast(U32<DF>(), bytes), out[0], out[1]);
  } else if constexpr (C == Codec::fp8) {
    decode_e4m3(d, pair_columns(bytes), scales.of(i, chunk), out);
  } else {
    decode_e2m1(d, bytes, scales.of(i, chunk), out);
  }
}

template <Codec C>
constexpr bool has_scale() {
  return C != Codec::f32 && C != Codec::bf16;
}

/// Columns [begin, end) of a group -> panel[step][i] of vectors, four columns a step.
template <Codec C>
HWY_NOINLINE void decode_panel(const RowGroup& g, int64_t begin, int64_t end, float* HWY_RESTRICT panel) {
  constexpr int64_t kChunk = chunk_columns(C), kVectors = kChunk / 4;
  const DF d;
  Scales<C> scales;
  for (int64_t block = begin; block < end; block += 128) {
    if constexpr (has_scale<C>()) scales.load(g, block);
    const int64_t chunks = (std::min(end, block + 128) - block + kChunk - 1) / kChunk;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const int64_t column = block + chunk * kChunk, offset = column * 16 / kChunk;
      const int64_t bytes = (end - column) * 16 / kChunk;
      for (int64_t i = 0; i < 4; ++i) {
        const auto codes = bytes >= 16 ? load_rows(g.codes, i, offset) : load_rows_tail(g.codes, i, offset, bytes);
        VF v[kVectors];
        decode_chunk<C>(codes, scales, i, chunk, v);
#pragma GCC unroll 8
        for (int64_t k = 0; k < kVectors; ++k) hn::Store(v[k], d, panel + (4 * k + i) * kLanes);
      }
      panel += kChunk * kLanes;
    }
  }
}

/// y[m, 0..kGroup*G) (+)= sums of `steps` panel steps. `first`: y is written, else added to.
template <int M, int G>
HWY_NOINLINE void tile(const float* HWY_RESTRICT panel, int64_t panel_pitch, const float* const* x, int64_t begin,
                       int64_t steps, bool first, float* y, int64_t y_pitch) {
  const DF d;
  VF acc[M][4 * G];
  const float* rows[M];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
    rows[m] = x[m] + begin;
#pragma GCC unroll 8
    for (int i = 0; i < 4 * G; ++i) acc[m][i] = hn::Zero(d);
  }
  for (int64_t s = 0; s < steps; ++s) {
    VF w[4 * G];
#pragma GCC unroll 8
    for (int i = 0; i < 4 * G; ++i) w[i] = hn::Load(d, panel + i / 4 * panel_pitch + (4 * s + i % 4) * kLanes);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const VF xv = hn::LoadDup128(d, rows[m] + 4 * s);
#pragma GCC unroll 8
      for (int i = 0; i < 4 * G; ++i) acc[m][i] = hn::MulAdd(xv, w[i], acc[m][i]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
      VF sum = sum_blocks(d, acc[m][4 * g], acc[m][4 * g + 1], acc[m][4 * g + 2], acc[m][4 * g + 3]);
      float* out = y + m * y_pitch + g * kGroup;
      if (!first) sum = hn::Add(hn::LoadU(d, out), sum);
      hn::StoreU(sum, d, out);
    }
  }
}

/// One row of x: weights go from codes to sums in registers. kPlain (fp8): x has the scales of the rows already, and
/// the factor 256 of the codes; products are the same numbers, since scales are powers of two.
template <Codec C, int G, bool kPlain>
HWY_NOINLINE void single_row(const RowGroup* groups, int64_t columns, const float* HWY_RESTRICT x, float* y) {
  constexpr int64_t kChunk = chunk_columns(C), kVectors = kChunk / 4;
  const DF d;
  for (int64_t begin = 0; begin < columns; begin += kDepth) {
    const int64_t end = std::min(columns, begin + kDepth);
    VF acc[4 * G];
#pragma GCC unroll 8
    for (int i = 0; i < 4 * G; ++i) acc[i] = hn::Zero(d);
    for (int64_t block = begin; block < end; block += 128) {
      Scales<C> scales[G];
      if constexpr (has_scale<C>() && !kPlain)
        for (int g = 0; g < G; ++g) scales[g].load(groups[g], block);
      const int64_t chunks = (std::min(end, block + 128) - block + kChunk - 1) / kChunk;
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        const int64_t column = block + chunk * kChunk, offset = column * 16 / kChunk;
        const int64_t bytes = (end - column) * 16 / kChunk;
        // Weights stream through the caches once. Every step asks for a line that some later step needs: 256 bytes on
        // in its row, or as far into the rows that come next. (An address behind the matrix does no harm.)
        const int64_t reach = std::min<int64_t>(256, groups[0].row_bytes), line = offset / 16 % 4;
        const bool wraps = offset + reach >= groups[0].row_bytes;
        const int64_t later = offset + reach + (wraps ? groups[0].ahead - groups[0].row_bytes : 0);
        VF xv[kVectors];
#pragma GCC unroll 8
        for (int64_t k = 0; k < kVectors; ++k) xv[k] = hn::LoadDup128(d, x + column + 4 * k);
#pragma GCC unroll 8
        for (int i = 0; i < 4 * G; ++i) {
          const uint8_t* const* rows = groups[i / 4].codes;
          if (line < kBlocks) hwy::Prefetch(rows[4 * line + i % 4] + later);
          const auto codes =
              HWY_LIKELY(bytes >= 16) ? load_rows(rows, i % 4, offset) : load_rows_tail(rows, i % 4, offset, bytes);
          VF w[kVectors];
          if constexpr (kPlain) {
            decode_e4m3_plain(d, pair_columns(codes), w);
          } else {
            decode_chunk<C>(codes, scales[i / 4], i % 4, chunk, w);
          }
#pragma GCC unroll 8
          for (int64_t k = 0; k < kVectors; ++k) acc[i] = hn::MulAdd(xv[k], w[k], acc[i]);
        }
      }
    }
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
      VF sum = sum_blocks(d, acc[4 * g], acc[4 * g + 1], acc[4 * g + 2], acc[4 * g + 3]);
      if (begin) sum = hn::Add(hn::LoadU(d, y + g * kGroup), sum);
      hn::StoreU(sum, d, y + g * kGroup);
    }
  }
}

template <int G>
void tiles(const float* panel, int64_t panel_pitch, const float* const* x, int64_t m, int64_t begin, int64_t steps,
           float* y, int64_t y_pitch) {
  const bool first = begin == 0;
  const auto run = [&](auto rows) HWY_ATTR {
    if constexpr (decltype(rows)::value <= kTileRows && (G == 1 || decltype(rows)::value <= 3)) {
      tile<decltype(rows)::value, G>(panel, panel_pitch, x, begin, steps, first, y, y_pitch);
      x += decltype(rows)::value, m -= decltype(rows)::value, y += decltype(rows)::value * y_pitch;
    }
  };
  while (m > 0) {
    const int64_t rows = m >= 2 * kTileRows ? kTileRows : m > kTileRows ? (m + 1) / 2 : m;
    switch (rows) {
      case 1:
        run(std::integral_constant<int, 1>());
        break;
      case 2:
        run(std::integral_constant<int, 2>());
        break;
      case 3:
        run(std::integral_constant<int, 3>());
        break;
      case 4:
        run(std::integral_constant<int, 4>());
        break;
      case 5:
        run(std::integral_constant<int, 5>());
        break;
      default:
        run(std::integral_constant<int, 6>());
        break;
    }
  }
}

struct PanelScratch;

/// y[m, 0 .. G * kGroup) of G groups of rows of w, for m rows of x (fp32 in the column order of the codec).
template <Codec C, int G>
void multiply_groups(const RowGroup* groups, int64_t columns, const float* const* x, int64_t m, float* y,
                     int64_t y_pitch) {
  if (m == 1) {
    single_row<C, G, false>(groups, columns, x[0], y);
  } else {
    auto* panel = reinterpret_cast<float*>(cpu::thread_scratch<PanelScratch>(sizeof(float) * G * kDepth * kGroup));
    for (int64_t begin = 0; begin < columns; begin += kDepth) {
      const int64_t end = std::min(columns, begin + kDepth);
      for (int g = 0; g < G; ++g) decode_panel<C>(groups[g], begin, end, panel + g * kDepth * kGroup);
      tiles<G>(panel, kDepth * kGroup, x, m, begin, cpu::round_up(end - begin, chunk_columns(C)) / 4, y, y_pitch);
    }
  }
  if constexpr (C == Codec::nvfp4) {
    const DF d;
    for (int64_t r = 0; r < m; ++r)
      for (int64_t n = 0; n < G * kGroup; n += kLanes) {
        float* at = y + r * y_pitch + n;
        hn::StoreU(hn::Mul(hn::LoadU(d, at), hn::Set(d, groups[n / kGroup].global)), d, at);
      }
  }
}

struct ScaledScratch;

/// fp8 rows [n0, n1) for one row of x, in runs of rows that share their scales.
void multiply_fp8_row(const Matrix& w, int64_t n0, int64_t n1, const float* x, float* y) {
  const DF d;
  auto* scaled = reinterpret_cast<float*>(
      cpu::thread_scratch<ScaledScratch>(static_cast<size_t>(cpu::x_pitch(w.columns)) * sizeof(float)));
  for (int64_t n = n0; n < n1;) {
    const int64_t scale_row = (n + w.scale_offset) >> 7;
    const int64_t end = std::min(n1, (((scale_row + 1) << 7) - w.scale_offset - n0) / kGroup * kGroup + n0);
    if (end <= n) {  // a group that lies across two rows of scales
      const RowGroup one = row_group(w, n);
      single_row<Codec::fp8, 1, false>(&one, w.columns, x, y + n - n0);
      n += kGroup;
      continue;
    }
    for (int64_t k = 0; k < w.columns; k += 128) {
      const auto s = hn::Set(d, to_float(e8m0{w.scale[scale_row * w.scale_bytes + k / 128]}) * kE4m3Unit);
      for (int64_t i = k; i < std::min(k + 128, w.columns); i += kLanes)
        hn::Store(hn::Mul(hn::LoadU(d, x + i), s), d, scaled + i);
    }
    for (; n + kGroup < end; n += 2 * kGroup) {
      const RowGroup two[2] = {row_group(w, n, 2), row_group(w, n + kGroup, 2)};
      single_row<Codec::fp8, 2, true>(two, w.columns, scaled, y + n - n0);
    }
    for (; n < end; n += kGroup) {
      const RowGroup one = row_group(w, n);
      single_row<Codec::fp8, 1, true>(&one, w.columns, scaled, y + n - n0);
    }
  }
}

template <Codec C>
void multiply_as(const Matrix& w, int64_t n0, int64_t n1, const float* const* x, int64_t m, float* y, int64_t y_pitch) {
  int64_t n = n0;
  for (; m <= 3 && n + kGroup < n1; n += 2 * kGroup, y += 2 * kGroup) {
    const RowGroup two[2] = {row_group(w, n, 2), row_group(w, n + kGroup, 2)};
    multiply_groups<C, 2>(two, w.columns, x, m, y, y_pitch);
  }
  for (; n < n1; n += kGroup, y += kGroup) {
    const RowGroup one = row_group(w, n);
    multiply_groups<C, 1>(&one, w.columns, x, m, y, y_pitch);
  }
}

/// y[m, n - n0] = x[m] . w[n] for rows [n0, n1) of w, on this thread. Every row of y has room for n1 - n0 rounded up to
/// whole groups; n0 is a multiple of kGroup.
void multiply(const Matrix& w, int64_t n0, int64_t n1, const float* const* x, int64_t m, float* y, int64_t y_pitch) {
  if (m <= 0) return;
  if (m == 1 && w.codec == Codec::fp8) return multiply_fp8_row(w, n0, n1, x[0], y);
  switch (w.codec) {
    case Codec::f32:
      return multiply_as<Codec::f32>(w, n0, n1, x, m, y, y_pitch);
    case Codec::bf16:
      return multiply_as<Codec::bf16>(w, n0, n1, x, m, y, y_pitch);
    case Codec::fp8:
      return multiply_as<Codec::fp8>(w, n0, n1, x, m, y, y_pitch);
    case Codec::mxfp4:
      return multiply_as<Codec::mxfp4>(w, n0, n1, x, m, y, y_pitch);
    case Codec::nvfp4:
      return multiply_as<Codec::nvfp4>(w, n0, n1, x, m, y, y_pitch);
  }
}

bool simd() {
  return true;
}

#else  // HWY_SCALAR: nothing here is called

bool simd() {
  return false;
}
void multiply(const cpu::Matrix&, int64_t, int64_t, const float* const*, int64_t, float*, int64_t) {}

#endif
}  // namespace fathom::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom::ops {

HWY_EXPORT(simd);
HWY_EXPORT(multiply);

namespace cpu {

bool have_simd() {
  return HWY_DYNAMIC_DISPATCH(simd)();
}

void multiply(const Matrix& w, int64_t n0, int64_t n1, const float* const* x, int64_t m, float* y, int64_t y_pitch) {
  HWY_DYNAMIC_DISPATCH(multiply)(w, n0, n1, x, m, y, y_pitch);
}

}  // namespace cpu
}  // namespace fathom::ops
#endif
