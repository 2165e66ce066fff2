// How long it takes to open a checkpoint: config, index, headers, inventory; and to read an index of V4's size.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include "formats/checkpoint.h"
#include "formats/gzip.h"
#include "formats/inventory.h"

namespace {

using namespace fathom;

void open_fairy(benchmark::State& state) {
  for (auto _ : state) {
    const Checkpoint checkpoint("models/fairy");
    benchmark::DoNotOptimize(checkpoint.tensors().size());
  }
}
BENCHMARK(open_fairy)->Unit(benchmark::kMillisecond);

void check_fairy_inventory(benchmark::State& state) {
  const Checkpoint checkpoint("models/fairy");
  for (auto _ : state) check_inventory(checkpoint.config(), checkpoint.tensors(), "fairy");
}
BENCHMARK(check_fairy_inventory)->Unit(benchmark::kMillisecond);

void copy_fairy_tensors(benchmark::State& state) {
  const Checkpoint checkpoint("models/fairy");
  std::vector<std::byte> out(checkpoint.total_bytes());
  for (auto _ : state) {
    size_t at = 0;
    for (const TensorInfo& tensor : checkpoint.tensors().all()) {
      const std::span<const std::byte> bytes = checkpoint.bytes(tensor);
      std::copy(bytes.begin(), bytes.end(), out.begin() + static_cast<std::ptrdiff_t>(at));
      at += bytes.size();
    }
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * out.size()));
}
BENCHMARK(copy_fairy_tensors)->Unit(benchmark::kMillisecond);

/// An index with as many entries as that of V4-Flash.
void parse_large_index(benchmark::State& state) {
  std::string text = R"({"metadata":{"total_size":159609485896},"weight_map":{)";
  for (int i = 0; i < 69187; ++i)
    text += fmt::format(R"({}"layers.{}.ffn.experts.{}.w1.scale":"model-{:05}-of-00046.safetensors")", i ? "," : "",
                        i / 1600, i % 1600, i / 1505 + 1);
  text += "}}";
  for (auto _ : state) benchmark::DoNotOptimize(parse_index(text, "index").tensors.size());
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
}
BENCHMARK(parse_large_index)->Unit(benchmark::kMillisecond);

void scan_scales(benchmark::State& state) {
  TensorInfo tensor;
  tensor.dtype = static_cast<DType>(state.range(0));
  const std::vector<float> ones(1 << 22, 1.0f);
  const auto bytes = std::as_bytes(std::span(ones));
  tensor.bytes = bytes.size();
  tensor.shape = {tensor.count()};
  for (auto _ : state) check_finite(tensor, bytes);
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * bytes.size()));
  state.SetLabel(std::string(name_of(tensor.dtype)));
}
BENCHMARK(scan_scales)
    ->Arg(static_cast<int>(DType::f8_e8m0))
    ->Arg(static_cast<int>(DType::f8_e4m3))
    ->Arg(static_cast<int>(DType::f32));

}  // namespace
