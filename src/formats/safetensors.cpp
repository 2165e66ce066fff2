#include "formats/safetensors.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>

#include <fmt/ranges.h>

#include "base/error.h"
#include "formats/json_reader.h"

namespace fathom {
namespace {

constexpr uint64_t max_header = 100'000'000;  // bytes; the format's own limit
constexpr size_t max_rank = 8;

uint64_t read_u64(const std::byte* p) {
  uint64_t value = 0;
  for (int i = 0; i < 8; ++i) value |= static_cast<uint64_t>(p[i]) << (8 * i);
  return value;
}

/// Bytes of a tensor, or nothing when the product overflows.
std::optional<uint64_t> byte_size(DType dtype, const std::vector<int64_t>& shape) {
  int64_t bytes = size_of(dtype);
  bool overflow = false;
  for (int64_t n : shape) overflow |= __builtin_mul_overflow(bytes, n, &bytes);
  // An overflow cannot be undone by a later 0: such a shape is no honest one.
  return overflow ? std::nullopt : std::optional<uint64_t>(static_cast<uint64_t>(bytes));
}

class HeaderParser {
 public:
  HeaderParser(std::span<const std::byte> file, const std::string& name) : file_(file), name_(name) {}

  SafetensorsHeader parse() {
    const std::string_view json = header_text();
    data_bytes_ = file_.size() - header_.data_begin;
    JsonReader reader(json, name_, 8);
    reader.object([&](const std::string& key) {
      if (key == "__metadata__") {
        reader.object([&](const std::string& field) { header_.metadata[field] = reader.string(); });
      } else {
        tensor(reader, key);
      }
    });
    reader.finish();
    check_cover();
    return std::move(header_);
  }

 private:
  std::string_view header_text() {
    if (file_.size() < 8)
      fail("{}: {} bytes long, too short for a safetensors file (incomplete download?)", name_, file_.size());
    const uint64_t length = read_u64(file_.data());
    if (length > max_header)
      fail("{}: header length {} at byte 0 is beyond the format's limit of {} bytes (not a safetensors file?)", name_,
           length, max_header);
    if (length > file_.size() - 8)
      fail("{}: header length {} at byte 0, but only {} bytes follow (incomplete download?)", name_, length,
           file_.size() - 8);
    header_.data_begin = 8 + length;
    const std::string_view text(reinterpret_cast<const char*>(file_.data()) + 8, length);
    if (text.empty() || text[0] != '{') fail("{}: byte 8: the header does not start with \"{{\"", name_);
    return text;
  }

  void tensor(JsonReader& reader, const std::string& key) {
    TensorInfo info;
    info.name = key;
    if (key.empty()) reader.fail("a tensor has an empty name");
    const std::string shown = printable(key);
    std::optional<DType> dtype;
    bool has_shape = false;
    std::vector<int64_t> range;
    reader.object([&](const std::string& field) {
      if (field == "dtype") {
        const std::string type = reader.string();
        dtype = dtype_of(type);
        if (!dtype) reader.fail(fmt::format("tensor {}: unknown dtype \"{}\"", shown, printable(type, 40)));
      } else if (field == "shape") {
        info.shape = sizes(reader, shown, "shape", max_rank);
        has_shape = true;
      } else if (field == "data_offsets") {
        range = sizes(reader, shown, "data_offsets", 2);
        if (range.size() != 2) reader.fail(fmt::format("tensor {}: data_offsets needs two numbers", shown));
      } else {
        reader.fail(fmt::format("tensor {}: unknown field \"{}\"", shown, printable(field, 40)));
      }
    });
    if (!dtype || !has_shape || range.empty())
      reader.fail(fmt::format("tensor {}: {} is missing", shown,
                              !dtype      ? "dtype"
                              : has_shape ? "data_offsets"
                                          : "shape"));
    info.dtype = *dtype;
    place(reader, info, range, shown);
    header_.tensors.add(std::move(info));  // the reader has refused duplicates
  }

  static std::vector<int64_t> sizes(JsonReader& reader, const std::string& shown, const char* field, size_t limit) {
    std::vector<int64_t> out;
    reader.array([&] {
      const int64_t n = reader.integer();
      if (n < 0) reader.fail(fmt::format("tensor {}: negative number in {}", shown, field));
      if (out.size() == limit) reader.fail(fmt::format("tensor {}: more than {} numbers in {}", shown, limit, field));
      out.push_back(n);
    });
    return out;
  }

  void place(JsonReader& reader, TensorInfo& info, const std::vector<int64_t>& range, const std::string& shown) const {
    const uint64_t begin = static_cast<uint64_t>(range[0]), end = static_cast<uint64_t>(range[1]);
    if (begin > end) reader.fail(fmt::format("tensor {}: data_offsets [{}, {}] run backwards", shown, begin, end));
    if (end > data_bytes_)
      reader.fail(fmt::format("tensor {}: data_offsets [{}, {}] leave the data of {} bytes (incomplete download?)",
                              shown, begin, end, data_bytes_));
    const std::optional<uint64_t> bytes = byte_size(info.dtype, info.shape);
    if (!bytes) reader.fail(fmt::format("tensor {}: the size of {} overflows", shown, describe(info)));
    if (*bytes != end - begin)
      reader.fail(fmt::format("tensor {}: {} takes {} bytes, but data_offsets [{}, {}] hold {}", shown, describe(info),
                              *bytes, begin, end, end - begin));
    info.offset = header_.data_begin + begin;
    info.bytes = *bytes;
  }

  /// The tensors must cover the data exactly once.
  void check_cover() const {
    std::vector<const TensorInfo*> order;
    for (const TensorInfo& tensor : header_.tensors.all()) order.push_back(&tensor);
    std::sort(order.begin(), order.end(), [](const TensorInfo* a, const TensorInfo* b) {
      return std::pair(a->offset, a->bytes) < std::pair(b->offset, b->bytes);
    });
    uint64_t at = header_.data_begin;
    const TensorInfo* last = nullptr;
    for (const TensorInfo* tensor : order) {
      if (tensor->offset < at)
        fail("{}: tensor {} at byte {} overlaps tensor {}, which ends at byte {}", name_, printable(tensor->name),
             tensor->offset, printable(last->name), at);
      if (tensor->offset > at)
        fail("{}: {} bytes at byte {}, before tensor {}, belong to no tensor", name_, tensor->offset - at, at,
             printable(tensor->name));
      at += tensor->bytes;
      last = tensor;
    }
    if (at != file_.size()) fail("{}: {} bytes at byte {} belong to no tensor", name_, file_.size() - at, at);
  }

  std::span<const std::byte> file_;
  const std::string& name_;
  uint64_t data_bytes_ = 0;
  SafetensorsHeader header_;
};

}  // namespace

std::string describe(DType dtype, std::span<const int64_t> shape) {
  return fmt::format("{} [{}]", name_of(dtype), fmt::join(shape, ", "));
}

bool TensorTable::add(TensorInfo tensor) {
  if (!index_.try_emplace(tensor.name, tensors_.size()).second) return false;
  tensors_.push_back(std::move(tensor));
  return true;
}

const TensorInfo* TensorTable::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

SafetensorsHeader parse_safetensors(std::span<const std::byte> file, const std::string& name) {
  return HeaderParser(file, name).parse();
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : map_(path), header_(parse_safetensors(map_.bytes(), printable(path.string(), 400))) {}

const TensorInfo& SafetensorsFile::info(std::string_view name) const {
  const TensorInfo* tensor = tensors().find(name);
  if (!tensor) fail("{}: there is no tensor {}", printable(path().string(), 400), printable(name));
  return *tensor;
}

std::span<const std::byte> SafetensorsFile::bytes(const TensorInfo& tensor) const {
  return map_.bytes().subspan(tensor.offset, tensor.bytes);
}

void SafetensorsFile::release(const TensorInfo& tensor) const {
  map_.release(tensor.offset, tensor.offset + tensor.bytes);
}

void SafetensorsFile::copy_bytes(const TensorInfo& tensor, bool type_matches, std::string_view wanted, void* to,
                                 size_t bytes) const {
  if (!type_matches)
    fail("{}: tensor {} is {}, {} was expected", printable(path().string(), 400), printable(tensor.name),
         describe(tensor), wanted);
  if (bytes != tensor.bytes)
    fail("{}: tensor {} is {}, {} elements were expected", printable(path().string(), 400), printable(tensor.name),
         describe(tensor), bytes / static_cast<size_t>(size_of(tensor.dtype)));
  if (bytes > 0) std::memcpy(to, this->bytes(tensor).data(), bytes);
}

}  // namespace fathom
