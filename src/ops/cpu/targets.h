// Which Highway targets the CPU variants are compiled for. Include before foreach_target.h.
//
// On x86 SSE4, AVX2 and AVX-512 cover every machine worth serving from; each further target costs compile time only.
// The scalar target that remains for older machines calls the reference. Vectors of unknown length are left out: the
// code counts lanes at compile time.
#pragma once

#ifndef FATHOM_SKIPPED_TARGETS
#define FATHOM_SKIPPED_TARGETS 0  // builds with sanitizers leave more out (cmake/options.cmake)
#endif
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | FATHOM_SKIPPED_TARGETS)
