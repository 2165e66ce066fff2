#include "doctor/machine.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <map>
#include <sstream>

#include "base/error.h"
#include "lab/cpu_rates.h"

extern char** environ;

namespace fathom::doctor {
namespace {

namespace fs = std::filesystem;

/// A small file of /proc or /sys; empty when it cannot be read.
std::string text_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::string out(size_t{1} << 20, '\0');
  in.read(out.data(), static_cast<std::streamsize>(out.size()));
  out.resize(static_cast<size_t>(std::max<std::streamsize>(in.gcount(), 0)));
  while (!out.empty() && (out.back() == '\n' || out.back() == ' ' || out.back() == '\0')) out.pop_back();
  return out;
}

/// The number that a text begins with; 0 when there is none.
double number_of(std::string_view text) {
  double value = 0;
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

/// What stands behind "key :" or "key=" in a text of such lines.
std::string field(const std::string& text, std::string_view key, char separator) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t at = line.find(separator);
    if (at == line.npos) continue;
    std::string_view name(line.data(), at);
    while (!name.empty() && (name.back() == ' ' || name.back() == '\t')) name.remove_suffix(1);
    if (name != key) continue;
    std::string_view value(line);
    value.remove_prefix(at + 1);
    while (!value.empty() && (value.front() == ' ' || value.front() == '"' || value.front() == '\t'))
      value.remove_prefix(1);
    while (!value.empty() && (value.back() == '"' || value.back() == ' ')) value.remove_suffix(1);
    return printable(value, 200);
  }
  return "";
}

uint64_t kilobytes(const std::string& text, std::string_view key) {
  return static_cast<uint64_t>(number_of(field(text, key, ':'))) * 1024;
}

int processors_of(const std::string& cpuinfo) {
  int n = 0;
  for (size_t at = 0; (at = cpuinfo.find("processor\t", at)) != cpuinfo.npos; ++at)
    n += at == 0 || cpuinfo[at - 1] == '\n';
  return n;
}

std::vector<fs::path> entries(const fs::path& folder) {
  std::vector<fs::path> out;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    out.push_back(at->path());
  std::sort(out.begin(), out.end());
  return out;
}

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
}

void read_memory(const fs::path& root, Machine& m) {
  const std::string info = text_of(root / "proc/meminfo");
  m.memory = kilobytes(info, "MemTotal"), m.available = kilobytes(info, "MemAvailable");
  m.swap = kilobytes(info, "SwapTotal");
  const fs::path groups = root / "sys/fs/cgroup";
  std::string limit = text_of(groups / "memory.max"), used = text_of(groups / "memory.current");
  if (limit.empty())
    limit = text_of(groups / "memory/memory.limit_in_bytes"), used = text_of(groups / "memory/memory.usage_in_bytes");
  // "max", or a number past all memory, is no limit.
  const double bytes = number_of(limit);
  if (bytes > 0 && bytes < static_cast<double>(m.memory))
    m.memory_limit = static_cast<uint64_t>(bytes), m.memory_used = static_cast<uint64_t>(number_of(used));
  const std::string quota = text_of(groups / "cpu.max");
  if (const double share = number_of(quota), period = number_of(quota.substr(std::min(quota.size(), quota.find(' '))));
      share > 0 && period > 0)
    m.processor_limit = share / period;
  const double old_quota = number_of(text_of(groups / "cpu/cpu.cfs_quota_us")),
               old_period = number_of(text_of(groups / "cpu/cpu.cfs_period_us"));
  if (old_quota > 0 && old_period > 0) m.processor_limit = old_quota / old_period;
  const std::string pages = text_of(root / "sys/kernel/mm/transparent_hugepage/enabled");
  const size_t open = pages.find('['), close = pages.find(']');
  if (open != pages.npos && close != pages.npos && close > open)
    m.huge_pages = printable(pages.substr(open + 1, close - open - 1), 40);
}

void read_nodes(const fs::path& root, Machine& m) {
  for (const fs::path& path : entries(root / "sys/devices/system/node")) {
    const std::string name = path.filename().string();
    if (!name.starts_with("node") || !is_number(std::string_view(name).substr(4))) continue;
    NumaNode node{static_cast<int>(number_of(name.substr(4))), printable(text_of(path / "cpulist"), 100), 0};
    std::istringstream lines(text_of(path / "meminfo"));
    for (std::string line; std::getline(lines, line);)
      if (const size_t at = line.find("MemTotal:"); at != line.npos)
        node.memory = static_cast<uint64_t>(number_of(line.substr(at + 9))) * 1024;
    m.nodes.push_back(std::move(node));
  }
  std::sort(m.nodes.begin(), m.nodes.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
}

void read_gpus(const fs::path& root, Machine& m) {
  for (const fs::path& path : entries(root / "sys/bus/pci/devices")) {
    if (text_of(path / "vendor") != "0x10de" || !text_of(path / "class").starts_with("0x03")) continue;
    PciGpu gpu;
    gpu.address = printable(path.filename().string(), 40);
    gpu.device = printable(text_of(path / "device"), 20);
    std::error_code error;
    const fs::path driver = fs::read_symlink(path / "driver", error);
    if (!error) gpu.driver = printable(driver.filename().string(), 40);
    gpu.speed = number_of(text_of(path / "current_link_speed"));
    gpu.speed_max = number_of(text_of(path / "max_link_speed"));
    gpu.width = static_cast<int>(number_of(text_of(path / "current_link_width")));
    gpu.width_max = static_cast<int>(number_of(text_of(path / "max_link_width")));
    const std::string node = text_of(path / "numa_node");
    gpu.numa_node = node.empty() || node.front() == '-' ? -1 : static_cast<int>(number_of(node));
    m.gpus.push_back(std::move(gpu));
  }
  const std::string version = text_of(root / "proc/driver/nvidia/version");
  if (!version.empty()) {
    m.driver = "unknown version";
    std::istringstream words(version);
    for (std::string word; words >> word;)
      if (word.find('.') != word.npos && word.find_first_not_of("0123456789.") == word.npos) {
        m.driver = word;
        break;
      }
  }
  for (const fs::path& path : entries(root / "dev"))
    if (const std::string name = path.filename().string();
        name == "nvidiactl" || name == "nvidia-uvm" || (name.starts_with("nvidia") && is_number(name.substr(6))))
      m.device_files.push_back("/dev/" + name);
}

void read_limits(Machine& m) {
  static constexpr std::pair<int, const char*> limits[] = {{RLIMIT_NOFILE, "open files"},
                                                           {RLIMIT_MEMLOCK, "locked memory"},
                                                           {RLIMIT_AS, "address space"},
                                                           {RLIMIT_NPROC, "processes"},
                                                           {RLIMIT_STACK, "stack"}};
  for (const auto& [which, name] : limits) {
    rlimit value{};
    if (::getrlimit(static_cast<__rlimit_resource_t>(which), &value) != 0) continue;
    m.limits.push_back(
        {name, value.rlim_cur == RLIM_INFINITY ? std::nullopt : std::optional<uint64_t>(value.rlim_cur)});
  }
}

void read_environment(Machine& m) {
  static constexpr std::string_view prefixes[] = {"CUDA_", "NVIDIA_", "NCCL_", "OMP_NUM_THREADS=", "TBB_"};
  for (char** at = environ; *at; ++at) {
    const std::string_view entry(*at);
    const size_t equals = entry.find('=');
    if (equals == entry.npos) continue;
    for (const std::string_view prefix : prefixes)
      if (entry.starts_with(prefix))
        m.environment.emplace_back(printable(entry.substr(0, equals), 80), printable(entry.substr(equals + 1), 200));
  }
  std::sort(m.environment.begin(), m.environment.end());
}

}  // namespace

Machine read_machine(const fs::path& root) {
  Machine m;
  m.system = field(text_of(root / "etc/os-release"), "PRETTY_NAME", '=');
  m.kernel = printable(text_of(root / "proc/sys/kernel/osrelease"), 80);
  const std::string cpuinfo = text_of(root / "proc/cpuinfo");
  m.processor = field(cpuinfo, "model name", ':');
  m.processors = processors_of(cpuinfo);
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) m.allowed = CPU_COUNT(&set);
  m.instruction_set = lab::cpu_instruction_set();
  m.governor = printable(text_of(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"), 40);
  read_memory(root, m);
  read_nodes(root, m);
  read_gpus(root, m);
  std::error_code error;
  const std::string control_group = text_of(root / "proc/1/cgroup");
  m.container = fs::exists(root / ".dockerenv", error) || fs::exists(root / "run/.containerenv", error) ||
                control_group.find("docker") != control_group.npos ||
                control_group.find("kubepods") != control_group.npos ||
                control_group.find("containerd") != control_group.npos || m.memory_limit > 0;
  read_limits(m);
  read_environment(m);
  return m;
}

}  // namespace fathom::doctor
