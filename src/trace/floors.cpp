#include "trace/floors.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace fathom::trace {
namespace {

// Per device as a trace names it, so of a two-die module (MI250) one die. Where makers print a rate "with sparsity",
// half of it. GeForce figures are those with FP32 accumulation. Sources: NVIDIA's data sheets of V100, T4, A100 (40 GB
// and 80 GB, SXM and PCIe), A40, A10, L4, L40, L40S, H100 (SXM, PCIe, NVL), H200, GH200, B200, GB200, B300, GB300, RTX
// 6000 Ada, RTX PRO 6000 Blackwell and DGX Spark; its GA102, Ada and RTX Blackwell architecture papers for GeForce;
// AMD's data sheets of MI250, MI300X and MI325X. H20, H800 and A800 as resellers and users print them (export models
// without a public sheet). GB10: the sheet gives 1 PFLOP/s of sparse FP4, of which BF16 is an eighth.
//
// Longer names first: "A100 80GB" before "A100".
constexpr GpuFigures gpus[] = {
    {"GB300", 8000, 2500},
    {"GB200", 8000, 2500},
    {"B300", 8000, 2250},
    {"B200", 8000, 2250},
    {"GH200", 4000, 989},
    {"H200 NVL", 4800, 836},
    {"H200", 4800, 989},
    {"H100 NVL", 3900, 836},
    {"H100 PCIe", 2000, 756},
    {"H100", 3350, 989},
    {"H800", 3350, 989},
    {"H20", 4000, 148},
    {"A100 80GB PCIe", 1935, 312},
    {"A100 80GB", 2039, 312},
    {"A100-SXM4-80GB", 2039, 312},
    {"A100", 1555, 312},
    {"A800", 2039, 312},
    {"A40", 696, 150},
    {"A10G", 600, 70},
    {"A10", 600, 125},
    {"L40S", 864, 362},
    {"L40", 864, 181},
    {"L4", 300, 121},
    {"RTX PRO 6000", 1792, 504},
    {"RTX 6000 Ada", 960, 364},
    {"RTX 5090", 1792, 210},
    {"RTX 5080", 960, 113},
    {"RTX 4090", 1008, 165},
    {"RTX 3090", 936, 71},
    {"RTX 3060", 360, 26},
    {"GB10", 273, 125},
    {"V100", 900, 125},
    {"T4", 320, 65},
    {"MI325X", 6000, 1307},
    {"MI300X", 5300, 1307},
    {"MI250", 1638, 181},
};

constexpr int64_t rows = 128 + 512, row_bytes = 584, heads = 64, channels = 512;
constexpr double experts = 256, experts_a_token = 6, expert_bytes = 13'369'344, hidden = 4096, inner = 2048;

std::string squeezed(std::string_view text) {
  std::string out;
  for (const char c : text)
    if (c != ' ' && c != '-' && c != '_') out += c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return out;
}

Floor floor_of(const GpuFigures& gpu, double bytes, double flops) {
  Floor f{bytes, flops, 0, true};
  const double by_bytes = bytes / gpu.bandwidth, by_flops = flops / gpu.tensor_rate / 1000;  // nanoseconds
  f.by_bytes = by_bytes >= by_flops;
  f.time = std::max<Ns>(1, std::llround(std::max(by_bytes, by_flops)));
  return f;
}

}  // namespace

std::optional<GpuFigures> find_gpu(std::string_view text) {
  const std::string wanted = squeezed(text);
  for (const GpuFigures& g : gpus) {
    const std::string name = squeezed(g.name);
    const size_t at = wanted.find(name);
    if (at == std::string::npos) continue;
    const size_t next = at + name.size();  // "A40" is no A4000
    if (next == wanted.size() || wanted[next] < '0' || wanted[next] > '9') return g;
  }
  return {};
}

std::string known_gpus() {
  std::string out;
  for (const GpuFigures& g : gpus) out += fmt::format("{}{}", out.empty() ? "" : ", ", g.name);
  return out;
}

Floor attention_floor(const GpuFigures& gpu, int64_t batch, int ranks) {
  const auto b = static_cast<double>(batch), h = static_cast<double>(heads) / std::max(1, ranks);
  const double kv = b * rows * row_bytes, query_and_out = b * h * channels * 2 * 2;
  return floor_of(gpu, kv + query_and_out, b * h * rows * channels * 2 * 2);
}

Floor experts_floor(const GpuFigures& gpu, int64_t batch, int ranks) {
  const auto b = static_cast<double>(batch), n = static_cast<double>(std::max(1, ranks));
  const double met = experts * (1 - std::pow(1 - experts_a_token / experts, b));
  return floor_of(gpu, met * expert_bytes / n, b * experts_a_token * 3 * hidden * inner * 2 / n);
}

}  // namespace fathom::trace
