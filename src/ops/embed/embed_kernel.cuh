// Embedding rows into the residual streams: one block a token and part of its row.
#pragma once

#include "ops/device/rows.cuh"
#include "ops/embed/embed.h"

namespace fathom::ops::embed {

inline constexpr int kThreads = 128;
inline constexpr int kBlockChannels = kThreads * 8;

/// Grid (parts of kBlockChannels channels, tokens).
FATHOM_DEVICE void embed_block(const EmbedArgs& a) {
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();
  const int64_t channel = (int64_t{device::block_x()} * kThreads + device::thread_index()) * 8, t = device::block_y();
  if (channel >= a.streams.size[2]) return;
  const auto row = *reinterpret_cast<const device::Words4*>(&a.table(a.ids(t), channel));
  for (int64_t k = 0; k < a.streams.size[1]; ++k) *reinterpret_cast<device::Words4*>(&a.streams(t, k, channel)) = row;
}

}  // namespace fathom::ops::embed
