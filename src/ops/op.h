// What every operation has in common: devices, variants, launches.
//
// One op is one folder src/ops/<op>/ with <op>.h (the contract: an Args struct of views, and the list of variants),
// <op>_ref.cpp (slow and exact), <op>_cpu.cpp (fast, Highway), <op>.cu (CUDA) and <op>_variants.cpp (the registry).
// An op runs in two steps. *Plan*: the host asks a variant whether it can run arguments of these static shapes and how
// much workspace it needs; it may look at sizes, never at data. *Run*: launches the work; it does not allocate, does
// not synchronise and is safe inside CUDA graph capture. Lengths that change from step to step live in device memory.
//
// ops/ and what it needs compile with nvcc and the standard library alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/view.h"

namespace fathom::ops {

enum class Backend { cpu, cuda };

/// The device that a plan is made for. On the CPU only `backend` is set. A test may lower `sm_count` or
/// `shared_bytes` to plan as another GPU would.
struct DeviceInfo {
  Backend backend = Backend::cpu;
  int compute_capability = 0;  // 80, 89, 90, 120 ...
  int sm_count = 0;
  int64_t shared_bytes = 0;  // most dynamic shared memory a block may ask for
  int64_t l2_bytes = 0;
};

struct Launch {
  DeviceInfo device;
  void* workspace = nullptr;  // at least Variant::workspace() bytes, 256-byte aligned; contents need not survive
  void* stream = nullptr;     // cudaStream_t
};

template <typename Args>
struct Variant {
  std::string_view name;  // "ref", "cpu", "sm80", ...
  Backend backend;
  /// Looks at static shapes and the device only.
  bool (*can_run)(const Args&, const DeviceInfo&);
  /// Bytes of scratch memory run() needs for these static shapes. Null: none. Must be zeroed once before first use
  /// when the variant's documentation says so.
  size_t (*workspace)(const Args&, const DeviceInfo&);
  void (*run)(const Args&, const Launch&);
};

template <typename Args>
using Variants = std::span<const Variant<Args>>;

/// The variant of that name; null when there is none.
template <typename Args>
const Variant<Args>* find_variant(Variants<Args> all, std::string_view name) {
  for (const auto& v : all)
    if (v.name == name) return &v;
  return nullptr;
}

/// For variants without conditions.
template <typename Args>
bool always(const Args&, const DeviceInfo&) {
  return true;
}

}  // namespace fathom::ops
