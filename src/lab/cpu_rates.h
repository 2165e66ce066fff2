// What this machine's processors can do, measured: the ceilings that the floors of CPU variants are computed from.
#pragma once

namespace fathom::lab {

/// With all threads of parallel_for: bytes read plus bytes written a second of a copy far larger than the caches, and
/// fp32 multiply-adds (two operations each) a second in vector registers.
struct CpuRates {
  double copy = 0;
  double fp32 = 0;
};
CpuRates measure_cpu_rates();

/// The instruction set that CPU operations use on this machine: "AVX3", "AVX2", "SSE4" (Highway's names).
const char* cpu_instruction_set();

}  // namespace fathom::lab
