// What the driver says about the GPUs of this machine, through NVML (libnvidia-ml.so.1), which is loaded at run time:
// the same binary runs where there is no driver. Signatures and numbers are those of NVIDIA's NVML API reference.
//
// A value that a GPU or driver does not give is empty and named in `unread` with the library's reason; nothing is
// guessed. Only reading calls are made: no clock, limit or mode is changed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace fathom::doctor {

/// Bits of GpuState::clock_reasons: why the clocks are what they are.
enum ClockReason : uint64_t {
  clock_idle = 0x1,
  clock_application_setting = 0x2,
  clock_power_cap = 0x4,
  clock_hardware_slowdown = 0x8,
  clock_sync_boost = 0x10,
  clock_software_thermal = 0x20,
  clock_hardware_thermal = 0x40,
  clock_power_brake = 0x80,
  clock_display_setting = 0x100,
};
/// "power cap, thermal (software)"; "none" for 0.
std::string clock_reasons_text(uint64_t reasons);

struct GpuState {
  int index = 0;
  std::string name, uuid, bus_id;  // bus_id "00000000:01:00.0"
  std::optional<int> compute_capability;
  std::optional<uint64_t> memory_total, memory_used;                                    // bytes
  std::optional<int> sm_clock, sm_clock_max, memory_clock, memory_clock_max;            // MHz
  std::optional<uint64_t> clock_reasons;                                                // ClockReason
  std::optional<double> power, power_limit, power_limit_default;                        // W; limit: the one in force
  std::optional<int> temperature, slowdown_temperature;                                 // degrees C
  std::optional<int> link_generation, link_generation_max, link_width, link_width_max;  // PCIe; max of GPU and slot
  std::optional<int> link_replays;
  std::optional<int> busy, memory_busy;  // % of the last sample period with a kernel running, with memory traffic
  std::optional<int> performance_state;  // 0 is the fastest
  std::optional<bool> persistence, ecc, mig;
  std::optional<int> compute_mode;  // 0 shared, 2 prohibited, 3 one process
  std::optional<uint64_t> uncorrected_errors;
  std::optional<int> nvlinks;       // active ones
  std::vector<std::string> unread;  // "power: Not Supported"
};

/// Between two GPUs.
struct GpuPair {
  int from = 0, to = 0;
  std::optional<int> peer_read;  // 0: works; else NVML's P2P status
  std::optional<int> nvlink;     // the same over NVLink
  std::optional<int> ancestor;  // 0 one board, 10 one switch, 20 several switches, 30 host bridge, 40 NUMA node, 50 far
};
/// "works", "disabled in the driver", ...
std::string peer_status_text(int status);
std::string ancestor_text(int level);

struct NvmlReport {
  std::string why_not;  // not empty: there is no NVML to be used, and why
  std::string library;  // what was loaded
  std::string driver, version;
  int cuda = 0;  // newest that the driver supports: 13000 is 13.0
  std::vector<GpuState> gpus;
  std::vector<GpuPair> pairs;            // each ordered pair once
  std::vector<std::string> unread;       // of the system and of pairs
  std::vector<std::string> unreachable;  // GPUs that could not be opened: "GPU 1: GPU is lost"
  bool usable() const { return why_not.empty(); }
};

class NvmlLibrary;

class Nvml {
 public:
  /// Loads `path`, or the driver's library when it is empty. Empty result: `why_not` says why there is none.
  static std::unique_ptr<Nvml> open(const std::string& path, std::string& why_not);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  NvmlReport read();
  /// The values of one GPU that change while it works: utilisation, power, clocks, reasons, temperature.
  GpuState sample(int index);

 private:
  explicit Nvml(std::unique_ptr<NvmlLibrary> library);
  std::unique_ptr<NvmlLibrary> library_;
};

/// open() and read() in one.
NvmlReport read_nvml(const std::string& path = "");

}  // namespace fathom::doctor
