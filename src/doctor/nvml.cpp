#include "doctor/nvml.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>

#include "base/error.h"

namespace fathom::doctor {
namespace {

// nvmlReturn_t
constexpr int success = 0, function_not_found = 13;
constexpr unsigned most_gpus = 64;
constexpr int most_links = 18;

using Device = void*;

struct MemoryInfo {
  unsigned long long total, free, used;
};
struct Utilization {
  unsigned gpu, memory;
};
struct PciInfo {
  char bus_id_legacy[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};

}  // namespace

class NvmlLibrary {
 public:
  explicit NvmlLibrary(void* handle) : handle_(handle) {}
  ~NvmlLibrary() {
    if (started) call("nvmlShutdown");
    ::dlclose(handle_);
  }
  NvmlLibrary(const NvmlLibrary&) = delete;
  NvmlLibrary& operator=(const NvmlLibrary&) = delete;

  bool has(const char* name) const { return ::dlsym(handle_, name) != nullptr; }

  /// Calls a function of the library; the types of the arguments are its signature.
  template <typename... Args>
  int call(const char* name, Args... args) const {
    void* symbol = ::dlsym(handle_, name);
    return symbol ? reinterpret_cast<int (*)(Args...)>(symbol)(args...) : function_not_found;
  }

  std::string reason(int code) const {
    if (code == function_not_found) return "the driver's library has no such function";
    if (void* symbol = ::dlsym(handle_, "nvmlErrorString"))
      if (const char* text = reinterpret_cast<const char* (*)(int)>(symbol)(code)) return printable(text);
    return fmt::format("NVML error {}", code);
  }

  /// A text that a function writes into a buffer; `before` are the arguments in front of it.
  template <typename... Before>
  std::string text(const char* function, int& code, Before... before) const {
    std::array<char, 97> buffer{};
    code = call(function, before..., buffer.data(), unsigned{96});
    return code == success ? printable(buffer.data()) : "";
  }

  bool started = false;
  std::string path;
  std::vector<std::pair<int, Device>> devices;  // index and handle
  std::vector<std::string> unreachable;

 private:
  void* handle_;
};

namespace {

/// Reads values of one GPU and notes those that it does not give.
class Reader {
 public:
  Reader(const NvmlLibrary& nvml, Device device, GpuState& state) : nvml_(nvml), device_(device), state_(state) {}

  /// `function(device, before..., T*)`.
  template <typename T, typename Out, typename... Before>
  void get(const char* what, const char* function, std::optional<Out>& out, Before... before) {
    T value{};
    if (good(what, nvml_.call(function, device_, before..., &value))) out = static_cast<Out>(value);
  }

  /// `function(device, T* first, T* second)`.
  template <typename T>
  bool pair(const char* what, const char* function, T& first, T& second) {
    return good(what, nvml_.call(function, device_, &first, &second));
  }

  bool good(const char* what, int code) {
    if (code != success) state_.unread.push_back(fmt::format("{}: {}", what, nvml_.reason(code)));
    return code == success;
  }

  /// Milliwatts as watts.
  void power(const char* what, const char* function, std::optional<double>& out) {
    get<unsigned>(what, function, out);
    if (out) *out *= 1e-3;
  }

  void changing() {
    constexpr int sm = 1, memory = 2, core = 0;
    get<unsigned>("SM clock", "nvmlDeviceGetClockInfo", state_.sm_clock, sm);
    get<unsigned>("memory clock", "nvmlDeviceGetClockInfo", state_.memory_clock, memory);
    const char* reasons = "nvmlDeviceGetCurrentClocksEventReasons";  // its name since driver 535
    if (!nvml_.has(reasons)) reasons = "nvmlDeviceGetCurrentClocksThrottleReasons";
    get<unsigned long long>("clock reasons", reasons, state_.clock_reasons);
    power("power", "nvmlDeviceGetPowerUsage", state_.power);
    power("power limit", "nvmlDeviceGetEnforcedPowerLimit", state_.power_limit);
    get<unsigned>("temperature", "nvmlDeviceGetTemperature", state_.temperature, core);
    Utilization used{};
    if (good("utilisation", nvml_.call("nvmlDeviceGetUtilizationRates", device_, &used)))
      state_.busy = static_cast<int>(used.gpu), state_.memory_busy = static_cast<int>(used.memory);
    MemoryInfo info{};
    if (good("memory", nvml_.call("nvmlDeviceGetMemoryInfo", device_, &info)))
      state_.memory_total = info.total, state_.memory_used = info.used;
  }

  void fixed() {
    constexpr int sm = 1, memory = 2, slowdown = 1, uncorrected = 1, since_start = 0;
    int code = 0;
    state_.name = nvml_.text("nvmlDeviceGetName", code, device_);
    good("name", code);
    state_.uuid = nvml_.text("nvmlDeviceGetUUID", code, device_);
    good("UUID", code);
    PciInfo pci{};
    if (good("PCI address", nvml_.call("nvmlDeviceGetPciInfo_v3", device_, &pci)))
      state_.bus_id = printable({pci.bus_id, ::strnlen(pci.bus_id, sizeof pci.bus_id)});
    int major = 0, minor = 0;
    if (pair("compute capability", "nvmlDeviceGetCudaComputeCapability", major, minor))
      state_.compute_capability = major * 10 + minor;
    get<unsigned>("highest SM clock", "nvmlDeviceGetMaxClockInfo", state_.sm_clock_max, sm);
    get<unsigned>("highest memory clock", "nvmlDeviceGetMaxClockInfo", state_.memory_clock_max, memory);
    power("default power limit", "nvmlDeviceGetPowerManagementDefaultLimit", state_.power_limit_default);
    get<unsigned>("slowdown temperature", "nvmlDeviceGetTemperatureThreshold", state_.slowdown_temperature, slowdown);
    get<unsigned>("PCIe generation", "nvmlDeviceGetCurrPcieLinkGeneration", state_.link_generation);
    get<unsigned>("highest PCIe generation", "nvmlDeviceGetMaxPcieLinkGeneration", state_.link_generation_max);
    get<unsigned>("PCIe width", "nvmlDeviceGetCurrPcieLinkWidth", state_.link_width);
    get<unsigned>("highest PCIe width", "nvmlDeviceGetMaxPcieLinkWidth", state_.link_width_max);
    get<unsigned>("PCIe replays", "nvmlDeviceGetPcieReplayCounter", state_.link_replays);
    get<int>("performance state", "nvmlDeviceGetPerformanceState", state_.performance_state);
    get<int>("persistence mode", "nvmlDeviceGetPersistenceMode", state_.persistence);
    get<int>("compute mode", "nvmlDeviceGetComputeMode", state_.compute_mode);
    int now = 0, later = 0;
    if (pair("ECC mode", "nvmlDeviceGetEccMode", now, later)) state_.ecc = now == 1;
    unsigned mig = 0, mig_later = 0;
    if (pair("MIG mode", "nvmlDeviceGetMigMode", mig, mig_later)) state_.mig = mig == 1;
    get<unsigned long long>("memory errors", "nvmlDeviceGetTotalEccErrors", state_.uncorrected_errors, uncorrected,
                            since_start);
    links();
  }

 private:
  void links() {
    int active = 0;
    for (unsigned link = 0; link < most_links; ++link) {
      int on = 0;
      const int code = nvml_.call("nvmlDeviceGetNvLinkState", device_, link, &on);
      if (code != success) {
        if (link == 0) good("NVLink", code);
        if (link == 0) return;
        break;  // past the links that it has
      }
      active += on == 1;
    }
    state_.nvlinks = active;
  }

  const NvmlLibrary& nvml_;
  Device device_;
  GpuState& state_;
};

void read_pairs(const NvmlLibrary& nvml, NvmlReport& report) {
  constexpr int caps_read = 0, caps_nvlink = 2;
  for (const auto& [from, device] : nvml.devices)
    for (const auto& [to, other] : nvml.devices) {
      if (from == to) continue;
      GpuPair pair{from, to, {}, {}, {}};
      int value = 0;
      const auto get = [&](const char* what, int code, std::optional<int>& out) {
        if (code == success)
          out = value;
        else if (report.pairs.empty())  // the first pair speaks for all
          report.unread.push_back(fmt::format("{}: {}", what, nvml.reason(code)));
      };
      get("peer access", nvml.call("nvmlDeviceGetP2PStatus", device, other, caps_read, &value), pair.peer_read);
      get("peer access over NVLink", nvml.call("nvmlDeviceGetP2PStatus", device, other, caps_nvlink, &value),
          pair.nvlink);
      get("topology", nvml.call("nvmlDeviceGetTopologyCommonAncestor", device, other, &value), pair.ancestor);
      report.pairs.push_back(pair);
    }
}

}  // namespace

std::string clock_reasons_text(uint64_t reasons) {
  static constexpr std::pair<uint64_t, const char*> names[] = {
      {clock_idle, "idle"},
      {clock_application_setting, "clock setting"},
      {clock_power_cap, "power cap"},
      {clock_hardware_slowdown, "hardware slowdown"},
      {clock_sync_boost, "sync boost"},
      {clock_software_thermal, "thermal (driver)"},
      {clock_hardware_thermal, "thermal (hardware)"},
      {clock_power_brake, "power brake"},
      {clock_display_setting, "display setting"},
  };
  std::string out;
  for (const auto& [bit, name] : names)
    if (reasons & bit) out += fmt::format("{}{}", out.empty() ? "" : ", ", name), reasons &= ~bit;
  if (reasons) out += fmt::format("{}unknown (0x{:x})", out.empty() ? "" : ", ", reasons);
  return out.empty() ? "none" : out;
}

std::string peer_status_text(int status) {
  static constexpr const char* names[] = {"works",
                                          "not supported by the chipset",
                                          "not supported by the GPU",
                                          "not possible across these PCIe root complexes",
                                          "disabled in the driver",
                                          "not supported",
                                          "unknown"};
  return status >= 0 && status < 7 ? names[status] : fmt::format("unknown ({})", status);
}

std::string ancestor_text(int level) {
  switch (level) {
    case 0:
      return "one board";
    case 10:
      return "one PCIe switch";
    case 20:
      return "several PCIe switches";
    case 30:
      return "one host bridge";
    case 40:
      return "one NUMA node";
    case 50:
      return "across NUMA nodes";
    default:
      return fmt::format("unknown ({})", level);
  }
}

Nvml::Nvml(std::unique_ptr<NvmlLibrary> library) : library_(std::move(library)) {}
Nvml::~Nvml() = default;

std::unique_ptr<Nvml> Nvml::open(const std::string& path, std::string& why_not) {
  const std::string name = path.empty() ? "libnvidia-ml.so.1" : path;
  void* handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* error = ::dlerror();
    why_not =
        fmt::format("{} cannot be loaded ({})", printable(name, 300), printable(error ? error : "no reason", 300));
    return nullptr;
  }
  auto library = std::make_unique<NvmlLibrary>(handle);
  library->path = name;
  const char* init = library->has("nvmlInit_v2") ? "nvmlInit_v2" : "nvmlInit";
  if (!library->has(init)) {
    why_not = fmt::format("{} is no NVML: it has no nvmlInit", printable(name, 300));
    return nullptr;
  }
  if (const int code = library->call(init); code != success) {
    why_not = fmt::format("{} does not start: {}", printable(name, 300), library->reason(code));
    return nullptr;
  }
  library->started = true;
  unsigned count = 0;
  if (const int code = library->call("nvmlDeviceGetCount_v2", &count); code != success) {
    why_not = fmt::format("{} cannot count the GPUs: {}", printable(name, 300), library->reason(code));
    return nullptr;
  }
  for (unsigned i = 0; i < std::min(count, most_gpus); ++i) {
    Device device = nullptr;
    const int code = library->call("nvmlDeviceGetHandleByIndex_v2", i, &device);
    if (code == success)
      library->devices.emplace_back(static_cast<int>(i), device);
    else
      library->unreachable.push_back(fmt::format("GPU {}: {}", i, library->reason(code)));
  }
  if (count > most_gpus) library->unreachable.push_back(fmt::format("GPUs behind the first {}", most_gpus));
  return std::unique_ptr<Nvml>(new Nvml(std::move(library)));
}

NvmlReport Nvml::read() {
  NvmlReport report;
  report.library = library_->path;
  report.unreachable = library_->unreachable;
  const auto note = [&](const char* what, int code) {
    if (code != success) report.unread.push_back(fmt::format("{}: {}", what, library_->reason(code)));
  };
  int code = 0;
  report.driver = library_->text("nvmlSystemGetDriverVersion", code);
  note("driver version", code);
  report.version = library_->text("nvmlSystemGetNVMLVersion", code);
  note("NVML version", code);
  note("CUDA version", library_->call("nvmlSystemGetCudaDriverVersion_v2", &report.cuda));
  for (const auto& [index, device] : library_->devices) {
    GpuState state;
    state.index = index;
    Reader reader(*library_, device, state);
    reader.fixed();
    reader.changing();
    report.gpus.push_back(std::move(state));
  }
  read_pairs(*library_, report);
  return report;
}

GpuState Nvml::sample(int index) {
  GpuState state;
  state.index = index;
  for (const auto& [i, device] : library_->devices)
    if (i == index) Reader(*library_, device, state).changing();
  return state;
}

NvmlReport read_nvml(const std::string& path) {
  NvmlReport report;
  const auto nvml = Nvml::open(path, report.why_not);
  return nvml ? nvml->read() : report;
}

}  // namespace fathom::doctor
