// Loads of memory that is read once from end to end, such as weights.
#pragma once

#include "ops/device/gpu.cuh"

namespace fathom::ops::device {

/// 16 bytes that nobody writes during the launch. The first touch of 256 bytes brings all of them into L2: threads that
/// take 64 bytes of a row at a time then find the rest there, and memory sees long accesses.
#ifdef FATHOM_GPU_EMULATOR
inline Float4 load_stream(const Float4* p) {
  return *p;
}
#else
FATHOM_DEVICE Float4 load_stream(const Float4* p) {
  Float4 v;
  asm("ld.global.nc.L1::no_allocate.L2::256B.v4.f32 {%0,%1,%2,%3}, [%4];"
      : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
      : "l"(p));
  return v;
}
#endif

}  // namespace fathom::ops::device
