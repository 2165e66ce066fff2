// The GPUs that a plan can be made for: data-sheet figures, from a table built in and from a file of the user.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace fathom::plan {

/// How several GPUs of a kind exchange data.
struct Link {
  std::string name;
  double bandwidth = 0;           // bytes a second, one direction of one GPU
  double all_reduce_latency = 0;  // seconds of an all-reduce of a few kilobytes
  bool measured = false;          // false: an assumption, to be said wherever the number is shown
};

struct Gpu {
  std::string name;
  std::vector<std::string> aliases;
  int compute_capability = 0;  // 80, 89, 90, 120 ...
  int sm_count = 0;
  double memory = 0;                  // bytes
  double bandwidth = 0;               // bytes a second
  double bf16 = 0, fp8 = 0, fp4 = 0;  // dense tensor-core FLOP/s; 0: no such instruction
  Link link;
};

class GpuTable {
 public:
  /// The table built in.
  GpuTable();
  /// Adds the GPUs of a file of the same form (src/plan/gpus.json); entries of a known name replace it. Throws Error
  /// naming the file, the entry and the field.
  void add_file(const std::filesystem::path& file);

  const std::vector<Gpu>& all() const { return gpus_; }
  /// By name or alias; letter case, blanks, '-' and '_' do not matter. Throws Error with the names there are.
  const Gpu& find(std::string_view name) const;
  /// The one whose name or alias occurs in what a driver or a trace calls the device ("NVIDIA H100 80GB HBM3"); the
  /// longest of several. Null when there is none.
  const Gpu* find_in(std::string_view device_name) const;

 private:
  void add(std::string_view text, const std::string& where);
  std::vector<Gpu> gpus_;
};

}  // namespace fathom::plan
