// A checkpoint folder: config.json, model.safetensors.index.json and the shards it names, or one model.safetensors.
//
// Opening checks everything that can be checked without reading weights: the index and the shards agree tensor by
// tensor and byte by byte, and no name leaves the folder. Whether these are the tensors that the config implies is the
// next check, check_inventory() of formats/inventory.h. Spec: deepseek-v4.md section 5.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/config.h"
#include "formats/safetensors.h"

namespace fathom {

/// What model.safetensors.index.json says.
struct CheckpointIndex {
  std::vector<std::pair<std::string, uint32_t>> tensors;  // tensor name -> position in `files`
  std::vector<std::string> files;                         // plain file names, in order of first use
  uint64_t total_size = 0;
  bool has_total_size = false;
};

/// Parses an index. Throws Error on bad JSON, duplicate names and file names that are not plain names inside the
/// folder. Touches no file.
CheckpointIndex parse_index(std::string_view text, const std::string& name);

class Checkpoint {
 public:
  /// Opens `folder`. Throws Error with one line that names the file and the tensor: missing or broken files, index
  /// entries outside the folder (absolute, "..", symbolic links that leave it, unless they lead to a plain blob
  /// store next to it), tensors that only the index or only a shard knows, a wrong metadata.total_size.
  explicit Checkpoint(const std::filesystem::path& folder);

  const ModelConfig& config() const { return config_; }
  const std::filesystem::path& folder() const { return folder_; }
  const std::vector<SafetensorsFile>& files() const { return files_; }
  const TensorTable& tensors() const { return tensors_; }
  /// Sum of all tensors' bytes.
  uint64_t total_bytes() const { return total_bytes_; }

  bool has(std::string_view name) const { return tensors_.find(name) != nullptr; }
  /// Throws Error when there is no such tensor.
  const TensorInfo& info(std::string_view name) const;
  std::vector<std::string> names() const;
  /// The tensor's bytes in the map. NOT aligned for its type: copy them, never reinterpret the pointer.
  std::span<const std::byte> bytes(std::string_view name) const { return bytes(info(name)); }
  std::span<const std::byte> bytes(const TensorInfo& tensor) const { return files_[tensor.file].bytes(tensor); }

  /// A copy as elements of T (bf16, float, e4m3, e8m0, e2m1x2, int8_t, uint8_t, int32_t, int64_t). Throws Error when
  /// the tensor holds another type.
  template <typename T>
  std::vector<T> copy(std::string_view name) const {
    return files_[info(name).file].template copy<T>(name);
  }
  /// The same into memory of the caller's; also throws Error when the count differs from `to.size()`.
  template <typename T>
  void copy_to(std::string_view name, std::span<T> to) const {
    const TensorInfo& tensor = info(name);
    files_[tensor.file].template copy_to<T>(tensor, to);
  }

  /// Drops a tensor's pages after it was copied, so that resident memory does not count the file twice.
  void release(const TensorInfo& tensor) const { files_[tensor.file].release(tensor); }
  void release(std::string_view name) const { release(info(name)); }
  /// Drops the pages of every file.
  void release_all() const;

 private:
  void open_index(const std::filesystem::path& path);
  void check_strays(const CheckpointIndex& index, const std::filesystem::path& path) const;
  void add_file(const std::filesystem::path& path);

  std::filesystem::path folder_;
  ModelConfig config_;
  std::vector<SafetensorsFile> files_;
  TensorTable tensors_;
  uint64_t total_bytes_ = 0;
};

}  // namespace fathom
