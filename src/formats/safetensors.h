// One safetensors file, mapped and checked: 8 bytes of header length, a JSON header, raw row-major data.
//
// The header comes from outside and is believed only after every check: unique names, known types, shapes whose bytes
// match their range, ranges that cover the data without overlap or hole. Spec: deepseek-v4.md section 5.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/file.h"
#include "formats/dtype.h"

namespace fathom {

/// Where a tensor lies. `offset` counts bytes from the start of the file; it has no alignment.
struct TensorInfo {
  std::string name;
  DType dtype = DType::u8;
  std::vector<int64_t> shape;  // row-major; empty for a scalar
  uint32_t file = 0;           // index in Checkpoint::files(); 0 in a single file
  uint64_t offset = 0;         // bytes
  uint64_t bytes = 0;

  int64_t count() const { return static_cast<int64_t>(bytes) / size_of(dtype); }
};

/// "F8_E4M3 [1024, 4096]": a type and shape for messages.
std::string describe(DType dtype, std::span<const int64_t> shape);
inline std::string describe(const TensorInfo& tensor) {
  return describe(tensor.dtype, tensor.shape);
}

/// Tensors by name, in the order they were added.
class TensorTable {
 public:
  /// False, and no change, when the name is taken.
  bool add(TensorInfo tensor);
  /// nullptr when there is no such tensor.
  const TensorInfo* find(std::string_view name) const;
  std::span<const TensorInfo> all() const { return tensors_; }
  size_t size() const { return tensors_.size(); }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
  };
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string, size_t, Hash, std::equal_to<>> index_;
};

/// What a safetensors header says.
struct SafetensorsHeader {
  TensorTable tensors;
  std::map<std::string, std::string> metadata;  // "__metadata__"
  uint64_t data_begin = 0;                      // bytes from the start of the file
};

/// Parses and checks the header of the file image `file`, which `name` names in errors. Touches only the header's
/// bytes. Throws Error naming the file, the tensor and the offset.
SafetensorsHeader parse_safetensors(std::span<const std::byte> file, const std::string& name);

/// A mapped safetensors file.
class SafetensorsFile {
 public:
  /// Throws Error when the file cannot be mapped or its header is not sound.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const TensorTable& tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  const std::filesystem::path& path() const { return map_.path(); }
  bool has(std::string_view name) const { return tensors().find(name) != nullptr; }
  /// Throws Error when there is no tensor of that name.
  const TensorInfo& info(std::string_view name) const;
  /// The tensor's bytes in the map. NOT aligned for its type: copy, never reinterpret the pointer.
  std::span<const std::byte> bytes(const TensorInfo& tensor) const;
  std::span<const std::byte> bytes(std::string_view name) const { return bytes(info(name)); }
  /// A copy as elements of T. Throws Error when the tensor holds another type.
  template <typename T>
  std::vector<T> copy(std::string_view name) const {
    const TensorInfo& tensor = info(name);
    std::vector<T> out(tensor.bytes / sizeof(T));
    copy_to<T>(tensor, out);
    return out;
  }
  /// The same into memory of the caller's. Throws Error also when the count is not that of the tensor.
  template <typename T>
  void copy_to(const TensorInfo& tensor, std::span<T> to) const {
    copy_bytes(tensor, holds<T>(tensor.dtype), name_of(stored_as<T>()), to.data(), to.size_bytes());
  }
  /// Drops the tensor's pages from resident memory; reading it again reads the file again.
  void release(const TensorInfo& tensor) const;
  const MappedFile& map() const { return map_; }

 private:
  void copy_bytes(const TensorInfo& tensor, bool type_matches, std::string_view wanted, void* to, size_t bytes) const;

  MappedFile map_;
  SafetensorsHeader header_;
};

}  // namespace fathom
