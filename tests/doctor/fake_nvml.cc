// A stand-in for the driver's libnvidia-ml.so with scripted values, for the tests of doctor/nvml.h.
//
// The script is the file that FAKE_NVML_SCRIPT names, read by nvmlInit: lines "key value" ("count 2",
// "gpu0.name NVIDIA H200", "gpu1.power 350000") and "key error CODE". A value that is not scripted is "not supported".
// Built with FAKE_NVML_OLD it lacks functions that old drivers lack.
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <string>

namespace {

constexpr int success = 0, not_supported = 3;

std::map<std::string, std::string>& script() {
  static std::map<std::string, std::string> lines;
  return lines;
}

/// Devices are pointers into this.
char devices[256];
std::string key(void* device, const char* what) {
  return "gpu" + std::to_string(static_cast<char*>(device) - devices) + "." + what;
}

int text(const std::string& name, std::string& out) {
  const auto at = script().find(name);
  if (at == script().end()) return not_supported;
  if (at->second.rfind("error ", 0) == 0) return std::atoi(at->second.c_str() + 6);
  out = at->second;
  return success;
}

template <typename T>
int number(const std::string& name, T* out) {
  std::string value;
  const int code = text(name, value);
  if (code == success) *out = static_cast<T>(std::strtoull(value.c_str(), nullptr, 0));
  return code;
}

int copy(const std::string& name, char* out, unsigned size) {
  std::string value;
  const int code = text(name, value);
  // A driver fills the buffer to its end without a 0 when the name is too long: worse than the documentation says.
  if (code == success) std::strncpy(out, value.c_str(), size);
  return code;
}

}  // namespace

extern "C" {

struct Memory {
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

int nvmlInit_v2() {
  script().clear();
  const char* path = std::getenv("FAKE_NVML_SCRIPT");
  std::ifstream in(path ? path : "/dev/null");
  for (std::string name, value; in >> name && std::getline(in >> std::ws, value);) script()[name] = value;
  int code = success;
  if (script().count("init")) number("init", &code);
  return code;
}
int nvmlShutdown() {
  return success;
}
const char* nvmlErrorString(int code) {
  switch (code) {
    case 0: return "Success";
    case 3: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case 9: return "Driver Not Loaded";
    case 15: return "GPU is lost";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
  }
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  return number("count", count);
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  int code = success;
  number("gpu" + std::to_string(index) + ".handle", &code);
  *device = devices + index;
  return code;
}
int nvmlSystemGetDriverVersion(char* out, unsigned size) {
  return copy("driver", out, size);
}
int nvmlDeviceGetName(void* d, char* out, unsigned size) {
  return copy(key(d, "name"), out, size);
}
int nvmlDeviceGetClockInfo(void* d, int type, unsigned* mhz) {
  return number(key(d, type == 1 ? "sm_clock" : "memory_clock"), mhz);
}
int nvmlDeviceGetMaxClockInfo(void* d, int type, unsigned* mhz) {
  return number(key(d, type == 1 ? "sm_clock_max" : "memory_clock_max"), mhz);
}
int nvmlDeviceGetPowerUsage(void* d, unsigned* milliwatts) {
  return number(key(d, "power"), milliwatts);
}
int nvmlDeviceGetEnforcedPowerLimit(void* d, unsigned* milliwatts) {
  return number(key(d, "limit"), milliwatts);
}
int nvmlDeviceGetTemperature(void* d, int, unsigned* celsius) {
  return number(key(d, "temperature"), celsius);
}
int nvmlDeviceGetUtilizationRates(void* d, Utilization* out) {
  const int code = number(key(d, "busy"), &out->gpu);
  number(key(d, "memory_busy"), &out->memory);
  return code;
}
int nvmlDeviceGetMemoryInfo(void* d, Memory* out) {
  const int code = number(key(d, "memory"), &out->total);
  out->used = 0;
  number(key(d, "used"), &out->used);
  out->free = out->total - out->used;
  return code;
}
#ifdef FAKE_NVML_OLD
int nvmlDeviceGetCurrentClocksThrottleReasons(void* d, unsigned long long* bits) {
  return number(key(d, "reasons"), bits);
}
#else
int nvmlSystemGetNVMLVersion(char* out, unsigned size) {
  return copy("version", out, size);
}
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  return number("cuda", version);
}
int nvmlDeviceGetCurrentClocksEventReasons(void* d, unsigned long long* bits) {
  return number(key(d, "reasons"), bits);
}
int nvmlDeviceGetUUID(void* d, char* out, unsigned size) {
  return copy(key(d, "uuid"), out, size);
}
int nvmlDeviceGetPciInfo_v3(void* d, PciInfo* out) {
  return copy(key(d, "bus"), out->bus_id, sizeof out->bus_id);
}
int nvmlDeviceGetCudaComputeCapability(void* d, int* major, int* minor) {
  const int code = number(key(d, "sm"), major);
  *minor = *major % 10, *major /= 10;
  return code;
}
int nvmlDeviceGetPowerManagementDefaultLimit(void* d, unsigned* milliwatts) {
  return number(key(d, "default_limit"), milliwatts);
}
int nvmlDeviceGetTemperatureThreshold(void* d, int, unsigned* celsius) {
  return number(key(d, "slowdown"), celsius);
}
int nvmlDeviceGetCurrPcieLinkGeneration(void* d, unsigned* value) {
  return number(key(d, "generation"), value);
}
int nvmlDeviceGetMaxPcieLinkGeneration(void* d, unsigned* value) {
  return number(key(d, "generation_max"), value);
}
int nvmlDeviceGetCurrPcieLinkWidth(void* d, unsigned* value) {
  return number(key(d, "width"), value);
}
int nvmlDeviceGetMaxPcieLinkWidth(void* d, unsigned* value) {
  return number(key(d, "width_max"), value);
}
int nvmlDeviceGetPcieReplayCounter(void* d, unsigned* value) {
  return number(key(d, "replays"), value);
}
int nvmlDeviceGetPerformanceState(void* d, int* state) {
  return number(key(d, "pstate"), state);
}
int nvmlDeviceGetPersistenceMode(void* d, int* mode) {
  return number(key(d, "persistence"), mode);
}
int nvmlDeviceGetComputeMode(void* d, int* mode) {
  return number(key(d, "compute_mode"), mode);
}
int nvmlDeviceGetEccMode(void* d, int* now, int* later) {
  return *later = 0, number(key(d, "ecc"), now);
}
int nvmlDeviceGetMigMode(void* d, unsigned* now, unsigned* later) {
  return *later = 0, number(key(d, "mig"), now);
}
int nvmlDeviceGetTotalEccErrors(void* d, int, int, unsigned long long* count) {
  return number(key(d, "ecc_errors"), count);
}
int nvmlDeviceGetNvLinkState(void* d, unsigned link, int* on) {
  unsigned links = 0;
  const int code = number(key(d, "nvlinks"), &links);
  if (code != success) return code;
  *on = 1;
  return link < links ? success : not_supported;
}
int nvmlDeviceGetP2PStatus(void* a, void*, int caps, int* status) {
  return number(key(a, caps == 2 ? "nvlink_peer" : "peer"), status);
}
int nvmlDeviceGetTopologyCommonAncestor(void* a, void*, int* level) {
  return number(key(a, "ancestor"), level);
}
#endif
}
