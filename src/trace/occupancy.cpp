#include "trace/occupancy.h"

#include <algorithm>

namespace fathom::trace {
namespace {

struct Generation {
  int major, minor, warps, blocks;
  int64_t shared;
};

// Per SM: resident warps, resident blocks, shared memory in bytes. Registers are 65536 everywhere here.
constexpr Generation generations[] = {
    {7, 0, 64, 32, 98304},   {7, 2, 64, 32, 98304},   {7, 5, 32, 16, 65536},   {8, 0, 64, 32, 167936},
    {8, 6, 48, 16, 102400},  {8, 7, 48, 16, 167936},  {8, 9, 48, 24, 102400},  {9, 0, 64, 32, 233472},
    {10, 0, 64, 32, 233472}, {10, 3, 64, 32, 233472}, {12, 0, 48, 24, 102400}, {12, 1, 48, 24, 102400},
};

}  // namespace

SmLimits sm_limits(const Device& d) {
  SmLimits out;
  out.sms = d.sm_count;
  if (d.warp_size > 0) out.warp_size = d.warp_size;
  for (const Generation& g : generations) {
    if (g.major != d.compute_major || g.minor != d.compute_minor) continue;
    out.known = d.sm_count > 0 && out.warp_size == 32;  // AMD files use the same fields for other machines
    out.warps = g.warps, out.blocks = g.blocks, out.registers = 65536, out.shared = g.shared;
    out.shared_reserved = g.major >= 8 ? 1024 : 0;
  }
  if (d.max_threads_per_sm > 0) out.warps = d.max_threads_per_sm / out.warp_size;
  if (d.registers_per_sm > 0) out.registers = d.registers_per_sm;
  if (d.shared_per_sm > 0) out.shared = d.shared_per_sm;
  return out;
}

Occupancy occupancy(const LaunchShape& s, const SmLimits& l) {
  Occupancy o;
  if (!s.has_grid() || l.sms <= 0) return o;
  const auto blocks = static_cast<double>(s.blocks());
  o.blocks_a_sm = blocks / l.sms;
  o.filled_sms = std::min(1.0, o.blocks_a_sm);
  if (!l.known || s.threads() == 0) return o;
  const auto warps = static_cast<int64_t>((s.threads() + 31) / 32);
  struct Bound {
    int64_t blocks;
    const char* what;
  };
  Bound bounds[4] = {
      {l.blocks, "blocks"}, {l.warps / warps, "warps"}, {INT64_MAX, "registers"}, {INT64_MAX, "shared memory"}};
  if (s.registers > 0) {  // registers are given out in units of 256 for each warp, warps over four partitions
    const int64_t per_warp = (int64_t{s.registers} * 32 + 255) / 256 * 256;
    bounds[2].blocks = l.registers / 4 / per_warp * 4 / warps;
  }
  if (s.shared_bytes > 0) bounds[3].blocks = l.shared / (int64_t{s.shared_bytes} + l.shared_reserved);
  const Bound& least = *std::min_element(std::begin(bounds), std::end(bounds),
                                         [](const Bound& a, const Bound& b) { return a.blocks < b.blocks; });
  o.known = true;
  o.blocks_per_sm = static_cast<int>(std::max<int64_t>(1, least.blocks));  // it did run
  o.limit = least.what;
  const double resident = std::min(blocks, static_cast<double>(o.blocks_per_sm) * l.sms);
  o.warps = std::min(1.0, resident * static_cast<double>(warps) / (static_cast<double>(l.warps) * l.sms));
  return o;
}

bool has_too_few_blocks(const Occupancy& o) {
  return o.filled_sms > 0 && o.filled_sms < 0.75;
}

}  // namespace fathom::trace
