#include "doctor/checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/progress.h"

namespace fathom::doctor {
namespace {

void add(std::vector<Check>& out, const std::string& area, Level level, std::string found, std::string cause = "",
         std::string remedy = "") {
  out.push_back({area, level, std::move(found), std::move(cause), std::move(remedy)});
}

std::string link_text(double generation_or_speed, int width, bool is_speed) {
  return is_speed ? fmt::format("{:g} GT/s x{}", generation_or_speed, width)
                  : fmt::format("PCIe {:g}.0 x{}", generation_or_speed, width);
}

void memory_check(const Machine& m, std::vector<Check>& out) {
  const auto text = [](uint64_t n) { return human_bytes(static_cast<double>(n)); };
  std::string found = fmt::format("{} of memory, {} available", text(m.memory), text(m.available));
  if (m.memory_limit > 0) found += fmt::format("; the container may use {}", text(m.memory_limit));
  const uint64_t usable = m.memory_limit > 0
                              ? std::min(m.memory_limit - std::min(m.memory_used, m.memory_limit), m.available)
                              : m.available;
  if (m.memory > 0 && usable < (uint64_t{2} << 30))
    add(out, "machine", Level::warning, found, "other programs or the container's limit leave little",
        "free memory or raise the limit: weights are copied into memory, in the precision of the files");
  else
    add(out, "machine", Level::ok, found);
}

void processor_checks(const Machine& m, std::vector<Check>& out) {
  std::string found =
      fmt::format("{}, {} processors, CPU operations use {}",
                  m.processor.empty() ? "processor without a name" : m.processor, m.processors, m.instruction_set);
  if (m.allowed > 0 && m.allowed < m.processors)
    add(out, "machine", Level::note, found + fmt::format("; this process may run on {}", m.allowed),
        "an affinity mask (taskset, cpuset, the container) was set", "nothing, if it is meant; else start without it");
  else
    add(out, "machine", Level::ok, found);
  if (m.processor_limit > 0 && m.processor_limit < (m.allowed > 0 ? m.allowed : m.processors) - 0.01)
    add(out, "machine", Level::warning,
        fmt::format("the container gets {:g} processors' time for {} that it sees", m.processor_limit,
                    m.allowed > 0 ? m.allowed : m.processors),
        "a CPU quota: threads are stopped when it is used up, which shows as pauses",
        fmt::format("raise the quota, or give --threads {}", std::max(1, static_cast<int>(m.processor_limit))));
  const std::string& isa = m.instruction_set;
  if (isa.find("SSE") != isa.npos || isa == "EMU128" || isa == "SCALAR")
    add(out, "machine", Level::warning, fmt::format("CPU operations run with {}", isa),
        "the processor, or the virtual machine, offers no AVX2",
        "let the virtual machine pass the host's processor through (-cpu host)");
  if (!m.governor.empty() && m.governor != "performance" && m.governor != "schedutil")
    add(out, "machine", Level::note, fmt::format("processor frequency governor {}", m.governor),
        "clocks may rise late: short measurements look slow", "cpupower frequency-set -g performance for measurements");
  if (m.nodes.size() > 1) {
    std::string nodes;
    for (const NumaNode& n : m.nodes)
      nodes += fmt::format("{}node {}: processors {}, {}", nodes.empty() ? "" : "; ", n.id, n.processors,
                           human_bytes(static_cast<double>(n.memory)));
    add(out, "machine", Level::note, fmt::format("{} NUMA nodes ({})", m.nodes.size(), nodes),
        "memory of another node is slower", "run each server on the node of its GPU: numactl -N NODE -m NODE");
  }
  if (m.huge_pages == "never")
    add(out, "machine", Level::note, "transparent huge pages are off", "weights in small pages cost address look-ups",
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled");
}

/// Reasons to hold clocks back that matter while a GPU works.
void clock_check(const GpuState& g, const std::string& area, std::vector<Check>& out) {
  const uint64_t reasons = g.clock_reasons.value_or(0);
  const std::string text =
      fmt::format("SM clock {} of {} MHz; held back by: {}", g.sm_clock ? std::to_string(*g.sm_clock) : "?",
                  g.sm_clock_max ? std::to_string(*g.sm_clock_max) : "?", clock_reasons_text(reasons));
  if (reasons & clock_power_brake)
    add(out, area, Level::bad, text, "the power brake: the machine's power supply tells the GPU to slow down (PWRBRK)",
        "check the power supply, the GPU's power cables and the pin of the riser; a card can stay at a quarter of its "
        "speed");
  else if (reasons & (clock_hardware_thermal | clock_software_thermal))
    add(out, area, Level::bad, text,
        fmt::format("it is hot: {} degrees C{}", g.temperature ? std::to_string(*g.temperature) : "?",
                    g.slowdown_temperature ? fmt::format(", slows down at {}", *g.slowdown_temperature) : ""),
        "more air, lower power limit (nvidia-smi -pl), fewer GPUs side by side; measure again when it is cool");
  else if (reasons & clock_hardware_slowdown)
    add(out, area, Level::bad, text, "the hardware slows the clocks down: heat, power brake or a failing supply",
        "look at temperature and power cables; nvidia-smi -q -d PERFORMANCE tells which");
  else if (reasons & clock_power_cap)
    add(out, area, Level::note, text, "its power limit: normal under full load",
        "raise the limit where the supply allows it (nvidia-smi -pl), or take it as it is");
  else if (reasons & clock_application_setting)
    add(out, area, Level::note, text, "somebody set the clocks", "nvidia-smi -rgc gives them free");
  else if (g.clock_reasons)
    add(out, area, Level::ok, text);
}

void link_check(const GpuState& g, const std::string& area, const Machine& machine, std::vector<Check>& out) {
  if (!g.link_generation || !g.link_width || !g.link_width_max) return;
  const std::string now = link_text(*g.link_generation, *g.link_width, false);
  const std::string most = link_text(g.link_generation_max.value_or(*g.link_generation), *g.link_width_max, false);
  if (*g.link_width < *g.link_width_max) {
    add(out, area, Level::warning, fmt::format("link {} where GPU and slot can {}", now, most),
        "fewer lanes than both ends have: a slot that shares its lanes, a riser, dirt, or a switch of the board",
        "seat the card anew or move it to a slot with all lanes; between GPUs the narrow link costs all-reduces");
    return;
  }
  for (const PciGpu& p : machine.gpus)
    if (!g.bus_id.empty() && g.bus_id.size() >= 12 && p.address.size() >= 12 &&
        g.bus_id.substr(g.bus_id.size() - 12) == p.address && p.width_max > *g.link_width_max) {
      add(out, area, Level::warning, fmt::format("link {}; the GPU alone could x{}", now, p.width_max),
          "the slot has fewer lanes than the GPU", "move it to a slot with all lanes");
      return;
    }
  const bool slow = g.link_generation_max && *g.link_generation < *g.link_generation_max;
  if (slow && !(g.clock_reasons.value_or(clock_idle) & clock_idle))
    add(out, area, Level::warning, fmt::format("link {} while it works, {} is possible", now, most),
        "the link did not train to its full speed (riser, signal errors, a setting of the firmware)",
        "set the slot's generation in the firmware, try without riser");
  else
    add(out, area, Level::ok,
        slow ? fmt::format("link {} at rest (up to {})", now, most) : fmt::format("link {}, the most there is", now));
  if (g.link_replays.value_or(0) > 1000)
    add(out, area, Level::warning, fmt::format("{} PCIe packets had to be sent again", *g.link_replays),
        "a link with signal errors", "seat the card anew, shorter riser, lower PCIe generation");
}

void one_gpu(const GpuState& g, const Machine& machine, std::vector<Check>& out) {
  const std::string area = fmt::format("GPU {}", g.index);
  std::string found = g.name.empty() ? "a GPU without a name" : g.name;
  if (g.compute_capability) found += fmt::format(", sm_{}", *g.compute_capability);
  if (g.memory_total)
    found += fmt::format(", {} of {} in use", human_bytes(static_cast<double>(g.memory_used.value_or(0))),
                         human_bytes(static_cast<double>(*g.memory_total)));
  if (g.power && g.power_limit) found += fmt::format(", {:.0f} of {:.0f} W", *g.power, *g.power_limit);
  if (g.temperature) found += fmt::format(", {} degrees C", *g.temperature);
  if (g.busy) found += fmt::format(", {} % busy", *g.busy);
  const bool old = g.compute_capability && *g.compute_capability < 80;
  add(out, area, old ? Level::bad : Level::ok, found, old ? "fathom's kernels need sm_80 or newer" : "",
      old ? "use another GPU, or --device cpu" : "");
  clock_check(g, area, out);
  if (g.temperature && g.slowdown_temperature && *g.temperature >= *g.slowdown_temperature - 5)
    add(out, area, Level::warning,
        fmt::format("{} degrees C, slows down at {}", *g.temperature, *g.slowdown_temperature), "cooling is at its end",
        "more air or a lower power limit (nvidia-smi -pl)");
  if (g.power_limit && g.power_limit_default && *g.power_limit < 0.98 * *g.power_limit_default)
    add(out, area, Level::note,
        fmt::format("power limit {:.0f} W, {:.0f} W when new", *g.power_limit, *g.power_limit_default),
        "somebody lowered it", fmt::format("nvidia-smi -i {} -pl {:.0f}", g.index, *g.power_limit_default));
  link_check(g, area, machine, out);
  if (g.mig.value_or(false))
    add(out, area, Level::warning, "MIG is on",
        "the GPU is divided: a program sees one part of its SMs, memory and bandwidth, and NVML tells no utilisation",
        fmt::format("compare with the part, or switch MIG off: nvidia-smi -i {} -mig 0", g.index));
  if (g.compute_mode.value_or(0) == 2)
    add(out, area, Level::bad, "compute mode is Prohibited", "no program may use this GPU",
        fmt::format("nvidia-smi -i {} -c DEFAULT", g.index));
  if (g.uncorrected_errors.value_or(0) > 0)
    add(out, area, Level::bad,
        fmt::format("{} uncorrected memory errors since the driver was loaded", *g.uncorrected_errors),
        "memory of the GPU is failing, or failed and was taken out of use",
        "reset the GPU; when they come again, have it replaced: results cannot be trusted");
  if (g.memory_total && g.memory_used && *g.memory_used > *g.memory_total / 20 + (uint64_t{1} << 30))
    add(out, area, Level::note,
        fmt::format("{} are taken before anything is loaded", human_bytes(static_cast<double>(*g.memory_used))),
        "other programs have it", "nvidia-smi lists them; what they use is missing for weights and cache");
  if (!g.unread.empty()) {
    std::string list;
    for (const std::string& what : g.unread) list += (list.empty() ? "" : "; ") + what;
    add(out, area, Level::note, fmt::format("{} values are not told ({})", g.unread.size(), list),
        "the GPU, the driver or the rights of this user do not give them", "nothing, if you do not miss them");
  }
}

void no_nvml(const NvmlReport& nvml, const Machine& m, std::vector<Check>& out) {
  const std::string found = "no NVML: " + nvml.why_not;
  std::string hidden;
  for (const PciGpu& gpu : m.gpus)
    if (gpu.driver != "nvidia")
      hidden += fmt::format("{}{} ({})", hidden.empty() ? "" : ", ", gpu.address,
                            gpu.driver.empty() ? "no driver" : "driver " + gpu.driver);
  if (m.gpus.empty() && m.driver.empty())
    add(out, "GPUs", Level::note, found, "no NVIDIA GPU is on the PCI bus and no driver is loaded",
        "nothing, when there is none: everything runs on the CPU");
  else if (!m.driver.empty() && m.device_files.empty())
    add(out, "GPUs", Level::bad, found,
        fmt::format("the host's driver {} is loaded, but /dev has no NVIDIA device here{}", m.driver,
                    m.container ? ": this container was started without GPUs" : ""),
        "start it with --gpus all (docker) or --device nvidia.com/gpu=all (podman)");
  else if (!m.driver.empty())
    add(out, "GPUs", Level::bad, found,
        fmt::format("driver {} is loaded and {} is there, but the driver's library is not", m.driver,
                    m.device_files.front()),
        "in a container NVIDIA_DRIVER_CAPABILITIES must contain utility and compute; else install the driver's "
        "libraries (libnvidia-ml1, libcuda1) of the same version");
  else
    add(out, "GPUs", Level::bad, found,
        fmt::format("{} on the PCI bus, but the NVIDIA driver is not loaded: {}",
                    m.gpus.size() == 1 ? "one GPU is" : fmt::format("{} GPUs are", m.gpus.size()),
                    hidden.empty() ? "unknown" : hidden),
        "install the driver, or modprobe nvidia; GPUs bound to vfio-pci belong to a virtual machine");
}

void pair_checks(const NvmlReport& nvml, std::vector<Check>& out) {
  if (nvml.gpus.size() < 2) return;
  std::string blocked;
  size_t working = 0, told = 0;
  bool far = false;
  for (const GpuPair& p : nvml.pairs) {
    if (!p.peer_read) continue;
    ++told;
    working += *p.peer_read == 0;
    if (*p.peer_read != 0 && blocked.empty())
      blocked = fmt::format("{} to {}: {}", p.from, p.to, peer_status_text(*p.peer_read));
    far |= p.ancestor.value_or(0) >= 50;
  }
  if (told == 0)
    add(out, "GPUs", Level::note, "peer access between the GPUs is not told", "the driver does not give it", "nothing");
  else if (working < told)
    add(out, "GPUs", Level::warning, fmt::format("peer access works for {} of {} pairs ({})", working, told, blocked),
        "GPUs that cannot read each other exchange data through the host's memory; consumer cards and IOMMU or ACS "
        "settings are the usual reasons",
        "iommu=pt and ACS off in the firmware; a driver that allows peer access; else expect slow all-reduces");
  else
    add(out, "GPUs", Level::ok, fmt::format("peer access works for all {} pairs", told));
  if (far)
    add(out, "GPUs", Level::note, "some pairs of GPUs are on different NUMA nodes",
        "their traffic crosses the link between processors", "put the GPUs of one server on one node");
}

}  // namespace

const char* level_name(Level level) {
  static constexpr const char* names[] = {"ok", "note", "warning", "BAD"};
  return names[static_cast<size_t>(level)];
}

std::vector<Check> machine_checks(const Machine& m) {
  std::vector<Check> out;
  add(out, "machine", Level::ok,
      fmt::format("{}, kernel {}{}", m.system.empty() ? "unknown system" : m.system,
                  m.kernel.empty() ? "unknown" : m.kernel, m.container ? ", in a container" : ""));
  processor_checks(m, out);
  memory_check(m, out);
  for (const Limit& limit : m.limits) {
    if (limit.name == "open files" && limit.value && *limit.value < 4096)
      add(out, "machine", Level::warning, fmt::format("{} open files are allowed", *limit.value),
          "each connection of the server is one", "ulimit -n 65536");
    if (limit.name == "address space" && limit.value)
      add(out, "machine", Level::warning,
          fmt::format("address space is limited to {}", human_bytes(static_cast<double>(*limit.value))),
          "checkpoints are mapped whole", "ulimit -v unlimited");
  }
  for (const auto& [name, value] : m.environment)
    if (name == "CUDA_VISIBLE_DEVICES" || name == "CUDA_LAUNCH_BLOCKING" || name == "NVIDIA_VISIBLE_DEVICES")
      add(out, "machine", name == "CUDA_LAUNCH_BLOCKING" && value != "0" ? Level::warning : Level::note,
          fmt::format("{}={}", name, value),
          name == "CUDA_LAUNCH_BLOCKING" ? "every kernel is waited for: measurements are worthless"
                                         : "it chooses which GPUs programs see; NVML still lists all",
          name == "CUDA_LAUNCH_BLOCKING" ? "unset CUDA_LAUNCH_BLOCKING" : "nothing, if it is meant");
  return out;
}

std::vector<Check> gpu_checks(const NvmlReport& nvml, const Machine& machine) {
  std::vector<Check> out;
  if (!nvml.usable()) {
    no_nvml(nvml, machine, out);
    return out;
  }
  const std::string versions =
      fmt::format("driver {}, NVML {}, CUDA up to {}.{}", nvml.driver.empty() ? "?" : nvml.driver,
                  nvml.version.empty() ? "?" : nvml.version, nvml.cuda / 1000, nvml.cuda % 1000 / 10);
  if (nvml.gpus.empty() && nvml.unreachable.empty())
    add(out, "GPUs", Level::bad, versions + "; no GPU",
        machine.container ? "this container sees none of the host's GPUs" : "the driver found none that works",
        "start the container with its GPUs (--gpus all); on the host look into dmesg for NVRM");
  else
    add(out, "GPUs", Level::ok,
        fmt::format("{}; {} GPU{}", versions, nvml.gpus.size(), nvml.gpus.size() == 1 ? "" : "s"));
  for (const std::string& lost : nvml.unreachable)
    add(out, "GPUs", Level::bad, lost, "the driver lists this GPU and cannot reach it",
        "look into dmesg for Xid and NVRM; reset it or restart the machine; check power and slot");
  for (const GpuState& g : nvml.gpus) one_gpu(g, machine, out);
  pair_checks(nvml, out);
  return out;
}

std::vector<Check> rate_checks(const Rates& r, const plan::GpuTable& table) {
  std::vector<Check> out;
  if (r.gpu.empty()) return out;
  const plan::Gpu* known = table.find_in(r.gpu);
  if (!known) return out;
  const double share = r.gpu_copy / known->bandwidth;
  const std::string found = fmt::format("copies at {:.0f} GB/s, {:.0f} % of {}'s {:.0f}", r.gpu_copy * 1e-9,
                                        100 * share, known->name, known->bandwidth * 1e-9);
  if (share < 0.7)
    add(out, "GPU rates", Level::warning, found, "memory clock held back, another program on the GPU, MIG, or ECC",
        "look at clocks and running programs above; measure again alone");
  else
    add(out, "GPU rates", Level::ok, found);
  return out;
}

std::vector<Check> work_checks(const WorkSamples& s) {
  std::vector<Check> out;
  const std::string area = fmt::format("GPU {}", s.index);
  if (s.samples == 0) return out;
  std::string found = fmt::format("under load: a kernel ran {:.0f} % of the time, memory moved {:.0f} %", 100 * s.busy,
                                  100 * s.memory_busy);
  if (s.power > 0) found += fmt::format(", {:.0f} W", s.power);
  if (s.limit > 0) found += fmt::format(" of {:.0f} W ({:.0f} %)", s.limit, 100 * s.power / s.limit);
  if (s.clock > 0) found += fmt::format(", SM clock {:.0f} MHz", s.clock);
  if (s.clock > 0 && s.clock_max > 0) found += fmt::format(" of {:.0f}", s.clock_max);
  constexpr uint64_t held =
      clock_power_cap | clock_hardware_slowdown | clock_software_thermal | clock_hardware_thermal | clock_power_brake;
  if (s.reasons & (held & ~uint64_t{clock_power_cap}))
    add(out, area, Level::bad, found, "the clocks were held back: " + clock_reasons_text(s.reasons & held),
        "cooling and power first: what is measured now is not this GPU's speed");
  else if (s.busy >= 0.8 && s.power > 0 && s.limit > 0 && s.power <= 0.55 * s.limit && !(s.reasons & held))
    add(out, area, Level::warning, found,
        "latency-bound: the SMs are occupied and mostly wait, which is how kernels without tensor cores, with few "
        "blocks or with dependent small loads look; 100 % utilisation says only that a kernel was there",
        "profile a steady stretch and read it: fathom trace FILE names the kernels (few blocks, KV read again for "
        "each head, matrix products without tensor cores)");
  else if (s.busy < 0.02)
    add(out, area, Level::note, found, "the server does not use this GPU", "nothing, if it is meant");
  else if (s.busy < 0.5)
    add(out, area, Level::warning, found, "the GPU waits for the host more than half of the time",
        "profile a steady stretch and read it with fathom trace FILE: launches, scheduling, sampling on the host");
  else
    add(out, area, Level::ok, found);
  return out;
}

}  // namespace fathom::doctor
