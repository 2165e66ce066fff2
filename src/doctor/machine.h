// What the operating system says about this machine, read from /proc and /sys: processors, memory, NUMA, limits of
// the container, NVIDIA devices on the PCI bus. Needs no driver and no rights.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace fathom::doctor {

struct NumaNode {
  int id = 0;
  std::string processors;  // "0-15"
  uint64_t memory = 0;     // bytes
};

/// An NVIDIA display controller on the PCI bus, whether a driver has it or not.
struct PciGpu {
  std::string address;              // "0000:01:00.0"
  std::string device;               // "0x2335"
  std::string driver;               // "nvidia", "vfio-pci", "nouveau"; empty: none
  double speed = 0, speed_max = 0;  // GT/s; 0: not told
  int width = 0, width_max = 0;     // lanes
  int numa_node = -1;
};

struct Limit {
  std::string name;
  std::optional<uint64_t> value;  // none: unlimited
};

struct Machine {
  std::string system, kernel;   // "Debian GNU/Linux 12 (bookworm)", "6.1.0"
  std::string processor;        // model name
  int processors = 0;           // of the machine
  int allowed = 0;              // that this process may run on
  double processor_limit = 0;   // of the container, in processors; 0: none
  std::string instruction_set;  // that the CPU operations use here
  std::string governor;         // of the first processor; empty: not told
  std::vector<NumaNode> nodes;
  uint64_t memory = 0, available = 0, swap = 0;  // bytes
  uint64_t memory_limit = 0, memory_used = 0;    // of the container; 0: none
  std::string huge_pages;                        // transparent: "always", "madvise", "never"; empty: not told
  bool container = false;
  std::vector<PciGpu> gpus;
  std::string driver;                     // version of the loaded NVIDIA kernel module; empty: not loaded
  std::vector<std::string> device_files;  // /dev/nvidia0, ...
  std::vector<Limit> limits;
  std::vector<std::pair<std::string, std::string>> environment;  // variables that choose or hide GPUs and processors
};

/// `root` stands in front of every path, for tests.
Machine read_machine(const std::filesystem::path& root = "/");

}  // namespace fathom::doctor
