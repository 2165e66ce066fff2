#include "model/synthetic.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/fnv.h"
#include "formats/built_in.h"
#include "ops/fill/fill.h"

namespace fathom {
namespace {

constexpr int kMostExperts = 512;  // that a router and its kernels take

int64_t number_of(std::string_view item, std::string_view value, int64_t low, int64_t high) {
  int64_t n = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), n);
  if (error != std::errc() || end != value.data() + value.size() || n < low || n > high)
    fail("synthetic model: {} must be a number from {} to {}", printable(std::string(item), 60), low, high);
  return n;
}

/// The inner width of the experts: whole blocks of 128 columns, which share a scale.
int inner_of(std::string_view item, std::string_view value) {
  const int64_t n = number_of(item, value, 128, 16384);
  if (n % 128 != 0) fail("synthetic model: {} must be a multiple of 128", printable(std::string(item), 60));
  return static_cast<int>(n);
}

uint8_t power_of_two_code(double value) {
  return static_cast<uint8_t>(std::clamp(127 + static_cast<int>(std::lround(std::log2(value))), 1, 254));
}

class SyntheticSource final : public WeightSource {
 public:
  explicit SyntheticSource(const std::string& description) : name_(description) {
    std::string_view rest = description;
    const auto next = [&] {
      const auto comma = std::min(rest.find(','), rest.size());
      const std::string_view item = rest.substr(0, comma);
      rest.remove_prefix(std::min(rest.size(), comma + 1));
      return item;
    };
    const std::string_view base = next();
    const auto known = built_in_model(base);
    if (!known) fail("synthetic model {}: there are {}", printable(std::string(base), 60), built_in_models());
    config_ = known->config;
    while (!rest.empty()) set(next());
    set_drafts(base, *known);
    config_.compress_ratios.resize(static_cast<size_t>(config_.num_layers));
    config_.num_hash_layers = std::min(config_.num_hash_layers, config_.num_layers);
    for (ExpectedTensor& tensor : expected_tensors(config_, layout_)) {
      total_ += tensor.bytes;
      tensors_.add(std::move(tensor));
    }
  }

  const ModelConfig& config() const override { return config_; }
  const CheckpointLayout& layout() const override { return layout_; }
  std::string name() const override { return name_; }
  bool synthetic() const override { return true; }
  uint64_t total_bytes() const override { return total_; }
  size_t tensor_count() const override { return tensors_.size(); }
  const TensorInfo& info(const std::string& name) const override {
    const TensorInfo* tensor = tensors_.find(name);
    if (!tensor) fail("synthetic model: no tensor {}", printable(name));
    return *tensor;
  }

  void put(const TensorInfo& tensor, std::byte* to, WeightMemory& memory) const override {
    ops::FillArgs args = values_of(tensor);
    args.to = to, args.bytes = static_cast<int64_t>(tensor.bytes);
    args.seed = seed_ ^ fnv1a(tensor.name);
    ops::fill(args, memory.device());
  }
  /// All ranks together have the bits of the whole model.
  void put_part(const TensorInfo& tensor, const TensorPart& part, std::byte* to, WeightMemory& memory) const override {
    ops::ComputeDevice& device = memory.device();
    const int64_t row = static_cast<int64_t>(tensor.bytes) / tensor.shape.at(0);
    if (row % 8 == 0 && part.first_byte % 8 == 0 && part.bytes % 8 == 0) {
      ops::FillArgs args = values_of(tensor);
      args.to = to, args.bytes = part.rows * part.bytes;
      args.seed = seed_ ^ fnv1a(tensor.name);
      args.first = (part.first_row * row + part.first_byte) / 8, args.row = part.bytes / 8, args.pitch = row / 8;
      return ops::fill(args, device);
    }
    // Borders inside a word: made whole and then cut.
    const ops::DeviceBuffer whole(device, (tensor.bytes + 7) / 8 * 8);
    put(tensor, whole.data(), memory);
    const auto pitch = static_cast<size_t>(row);
    device.copy_rows(to, static_cast<size_t>(part.bytes),
                     whole.data() + static_cast<size_t>(part.first_row) * pitch + static_cast<size_t>(part.first_byte),
                     pitch, static_cast<size_t>(part.bytes), part.rows);
    device.synchronize("filling weights");
  }
  void put_ids(const TensorInfo& tensor, std::byte* to, WeightMemory& memory) const override {
    ops::FillArgs args;
    args.kind = ops::FillKind::ids;
    args.to = to, args.bytes = tensor.count() * static_cast<int64_t>(sizeof(int32_t));
    args.seed = seed_ ^ fnv1a(tensor.name);
    args.ids = config_.num_experts, args.chosen = config_.experts_per_token;
    ops::fill(args, memory.device());
  }
  float factor(const TensorInfo&) const override { return 1; }

 private:
  void set(std::string_view item) {
    const auto equals = item.find('=');
    const std::string_view key = item.substr(0, equals),
                           value = equals == item.npos ? std::string_view() : item.substr(equals + 1);
    if (key == "layers")
      config_.num_layers = static_cast<int>(number_of(item, value, 1, config_.num_layers));
    else if (key == "experts")
      config_.num_experts = static_cast<int>(number_of(item, value, config_.experts_per_token, kMostExperts));
    else if (key == "inner")
      config_.moe_intermediate_size = inner_of(item, value);
    else if (item == "drafts=dspark" || item == "drafts=mtp")
      drafts_ = item == "drafts=mtp" ? DraftKind::mtp : DraftKind::dspark;
    else if (key == "seed")
      seed_ = static_cast<uint64_t>(number_of(item, value, 0, INT64_MAX)) * 0x9E3779B97F4A7C15ull;
    else
      fail("synthetic model: {} is none of layers=N, experts=N, inner=N, seed=N, drafts=dspark, drafts=mtp",
           printable(std::string(item), 60));
  }

  /// The draft stages that were asked for; none else.
  void set_drafts(std::string_view base, const BuiltInModel& known) {
    if (drafts_ == DraftKind::dspark && !config_.dspark)
      fail("synthetic model {}: it has no DSpark draft; {} have one", printable(std::string(base), 60),
           "fairy, v4-flash-0731 and v4-flash-0731-k160");
    layout_.draft = drafts_;
    layout_.draft_stages = drafts_ == DraftKind::none ? 0 : drafts_ == DraftKind::mtp ? 1 : known.layout.draft_stages;
    config_.num_nextn_predict_layers = layout_.draft_stages;
    if (drafts_ != DraftKind::dspark) return config_.dspark.reset();
    auto& targets = config_.dspark->target_layers;  // the last ones
    const auto count = static_cast<int>(targets.size());
    if (config_.num_layers < count) fail("synthetic model: its DSpark draft needs at least {} layers", count);
    for (int i = 0; i < count; ++i) targets[static_cast<size_t>(i)] = config_.num_layers - count + i;
  }

  /// How a tensor is drawn.
  ops::FillArgs values_of(const TensorInfo& tensor) const {
    const std::string_view name = tensor.name;
    const auto columns = static_cast<double>(tensor.shape.empty() ? 1 : tensor.shape.back());
    ops::FillArgs a;
    switch (tensor.dtype) {
      case DType::f8_e8m0: {
        const bool packed = name.find(".experts.") != name.npos && layout_.experts == WeightFormat::mxfp4;
        const double width = columns * (packed ? 32 : 128);
        a.kind = ops::FillKind::constant;
        a.byte = power_of_two_code(1 / (std::sqrt(width) * (packed ? ops::kFillE2m1Rms : ops::kFillE4m3Rms)));
        return a;
      }
      case DType::f8_e4m3:
        a.kind = ops::FillKind::e4m3;
        return a;
      case DType::i8:
      case DType::u8:
        a.kind = ops::FillKind::bytes;
        return a;
      default:
        break;
    }
    a.kind = tensor.dtype == DType::bf16 ? ops::FillKind::bf16 : ops::FillKind::f32;
    const double even = std::sqrt(3.0);  // half width of an even distribution over its deviation
    if (name.ends_with("norm.weight"))
      a.center = 1, a.spread = 0.25f;
    else if (name.ends_with("_scale"))  // of the stream mixing
      a.center = 1;
    else if (name == "embed.weight")
      a.spread = static_cast<float>(even);
    else if (tensor.shape.size() == 2 && !name.ends_with(".ape"))
      a.spread = static_cast<float>(even / std::sqrt(columns) * (name == "head.weight" ? 2 : 1));
    else
      a.spread = name.ends_with("gate.bias") ? 0.05f : 0.5f;  // sinks, mixing biases, places in a block
    return a;
  }

  std::string name_;
  ModelConfig config_;
  CheckpointLayout layout_;
  TensorTable tensors_;
  DraftKind drafts_ = DraftKind::none;
  uint64_t total_ = 0, seed_ = 0;
};

}  // namespace

std::unique_ptr<WeightSource> synthetic_source(const std::string& description) {
  return std::make_unique<SyntheticSource>(description);
}

}  // namespace fathom
