// Loading of golden vectors and comparison rules shared by the op tests.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/view.h"
#include "formats/checkpoint.h"
#include "formats/safetensors.h"
#include "ops/op.h"

namespace fathom::test {

inline std::filesystem::path source_dir() {
  return FATHOM_SOURCE_DIR;
}

inline const Checkpoint& fairy() {
  static const Checkpoint checkpoint(source_dir() / "models/fairy");
  return checkpoint;
}

/// A golden file or the fairy checkpoint, with tensors kept alive as typed vectors so that views may point to them.
template <typename File>
class Tensors {
 public:
  explicit Tensors(const File& file) : file_(file) {}

  template <typename T>
  View<const T, 1> vec(const std::string& name) {
    const auto& data = get<T>(name);
    return View<const T, 1>(data.data(), data.size());
  }
  template <typename T>
  View<const T, 2> mat(const std::string& name) {
    const auto& data = get<T>(name);
    const auto& shape = file_.info(name).shape;
    return View<const T, 2>(data.data(), shape.at(0), shape.at(1));
  }
  template <typename T>
  View<const T, 3> cube(const std::string& name) {
    const auto& data = get<T>(name);
    const auto& shape = file_.info(name).shape;
    return View<const T, 3>(data.data(), shape.at(0), shape.at(1), shape.at(2));
  }
  template <typename T>
  const std::vector<T>& get(const std::string& name) {
    auto& slot = store<T>()[name];
    if (slot.empty()) slot = convert<T>(name);
    return slot;
  }

 private:
  template <typename T>
  std::vector<T> convert(const std::string& name) {
    if constexpr (sizeof(T) == 1) {  // goldens store codes as U8
      const auto bytes = file_.bytes(file_.info(name));
      std::vector<T> out(bytes.size());
      std::memcpy(out.data(), bytes.data(), bytes.size());
      return out;
    } else {
      return file_.template copy<T>(name);
    }
  }
  template <typename T>
  std::map<std::string, std::vector<T>>& store() {
    if constexpr (std::is_same_v<T, float>)
      return floats_;
    else if constexpr (std::is_same_v<T, bf16>)
      return bf16s_;
    else if constexpr (std::is_same_v<T, int32_t>)
      return ints_;
    else if constexpr (std::is_same_v<T, int64_t>)
      return longs_;
    else if constexpr (std::is_same_v<T, e4m3>)
      return e4m3s_;
    else if constexpr (std::is_same_v<T, e8m0>)
      return e8m0s_;
    else
      return bytes_;
  }
  const File& file_;
  std::map<std::string, std::vector<float>> floats_;
  std::map<std::string, std::vector<bf16>> bf16s_;
  std::map<std::string, std::vector<int32_t>> ints_;
  std::map<std::string, std::vector<int64_t>> longs_;
  std::map<std::string, std::vector<e4m3>> e4m3s_;
  std::map<std::string, std::vector<e8m0>> e8m0s_;
  std::map<std::string, std::vector<uint8_t>> bytes_;
};

struct Golden {
  explicit Golden(const std::string& name) : file(source_dir() / "tests/golden" / (name + ".safetensors")), t(file) {}
  SafetensorsFile file;
  Tensors<SafetensorsFile> t;
};

/// Distance of two bf16 values in units in the last place.
inline int ulps(bf16 a, bf16 b) {
  const auto order = [](bf16 v) {
    return v.bits & 0x8000 ? -static_cast<int>(v.bits & 0x7FFF) : static_cast<int>(v.bits);
  };
  return std::abs(order(a) - order(b));
}

/// What a comparison found.
struct Match {
  size_t count = 0, different = 0;
  int worst_ulps = 0;
  double relative_l2 = 0;
};

inline Match compare(const bf16* got, View<const bf16, 1> want) {
  Match m;
  double error = 0, norm = 0;
  m.count = static_cast<size_t>(want.size[0]);
  for (int64_t i = 0; i < want.size[0]; ++i) {
    m.different += got[i] != want(i);
    m.worst_ulps = std::max(m.worst_ulps, ulps(got[i], want(i)));
    const double g = to_float(got[i]), w = to_float(want(i));
    error += (g - w) * (g - w), norm += w * w;
    if (std::isnan(g)) m.relative_l2 = INFINITY;
  }
  m.relative_l2 += norm > 0 ? std::sqrt(error / norm) : std::sqrt(error);
  return m;
}

/// Every variant of an op that runs on the CPU.
template <typename Args>
std::vector<const ops::Variant<Args>*> cpu_variants(ops::Variants<Args> all) {
  std::vector<const ops::Variant<Args>*> out;
  for (const auto& v : all)
    if (v.backend == ops::Backend::cpu) out.push_back(&v);
  return out;
}

/// Runs a variant with its own workspace.
template <typename Args>
void run(const ops::Variant<Args>& v, const Args& args) {
  ops::Launch launch;
  std::vector<std::byte> memory;
  ASSERT_TRUE(v.can_run(args, launch.device)) << v.name;
  if (v.workspace) {
    memory.resize(v.workspace(args, launch.device) + 256);
    launch.workspace = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(memory.data()) + 255) / 256 * 256);
  }
  v.run(args, launch);
}

}  // namespace fathom::test
