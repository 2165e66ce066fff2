// Safetensors headers, indices and configs from hostile files: an Error is the only way to fail.
//
// The first byte picks the parser. What a parser accepts must keep its promises: ranges inside the file that match
// their shapes, file names without a path, dimensions within their limits.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "formats/checkpoint.h"
#include "formats/config.h"
#include "formats/inventory.h"
#include "formats/safetensors.h"

namespace {

using namespace fathom;

void must(bool promise) {
  if (!promise) std::abort();
}

void one_line(const Error& error) {
  const std::string text = error.what();
  must(!text.empty() && text.find('\n') == text.npos && text.size() < 2000);
}

void fuzz_header(std::span<const std::byte> file) {
  const SafetensorsHeader header = parse_safetensors(file, "x.safetensors");
  uint64_t sum = header.data_begin;
  for (const TensorInfo& tensor : header.tensors.all()) {
    must(tensor.offset >= header.data_begin && tensor.offset <= file.size());
    must(tensor.bytes <= file.size() - tensor.offset);
    uint64_t count = 1;
    for (int64_t n : tensor.shape) must(n >= 0), count *= static_cast<uint64_t>(n);
    must(count * static_cast<uint64_t>(size_of(tensor.dtype)) == tensor.bytes);
    must(header.tensors.find(tensor.name) == &tensor);
    sum += tensor.bytes;
    try {
      if (tensor.name.ends_with(".weight"))
        recognise_matrix(header.tensors, std::string_view(tensor.name).substr(0, tensor.name.size() - 7));
      check_scales(tensor, file.subspan(tensor.offset, tensor.bytes));
    } catch (const Error& error) {
      one_line(error);
    }
  }
  must(sum == file.size());
}

void fuzz_index(std::string_view text) {
  const CheckpointIndex index = parse_index(text, "model.safetensors.index.json");
  for (const std::string& file : index.files)
    must(!file.empty() && file.find('/') == file.npos && file != ".." && file.find('\0') == file.npos);
  for (const auto& [name, file] : index.tensors) must(!name.empty() && file < index.files.size());
}

void fuzz_config(std::string_view text) {
  const ModelConfig c = parse_config(text, "config.json");
  must(c.num_heads % c.o_groups == 0 && c.heads_per_group() > 0);
  must(c.compress_ratios.size() >= static_cast<size_t>(c.num_layers));
  for (int layer = 0; layer < c.num_layers; ++layer)
    must(c.ratio(layer) == 0 || c.ratio(layer) == 4 || c.ratio(layer) == 128);
  must(c.experts_per_token <= c.num_experts && !c.eos_ids.empty() && c.bos_id < c.vocab_size);
  if (c.num_layers * c.num_experts > 2000) return;
  CheckpointLayout layout;
  if (c.dspark) layout = {.draft = DraftKind::dspark, .draft_stages = 2};
  TensorTable tensors;
  for (ExpectedTensor& tensor : expected_tensors(c, layout)) must(tensors.add(std::move(tensor)));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::span<const std::byte> rest(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    switch (data[0] % 4) {
      case 0:
        fuzz_header(rest);
        break;
      case 1:
        fuzz_index(text);
        break;
      case 2:
        fuzz_config(text);
        break;
      default: {  // a header without its length, which a mutation would have to hit
        std::string image(8, '\0');
        const size_t end = text.find('\x01');  // separates header and data
        const uint64_t length = end == text.npos ? text.size() : end;
        for (int i = 0; i < 8; ++i) image[static_cast<size_t>(i)] = static_cast<char>(length >> (8 * i));
        image += text.substr(0, length);
        if (end != text.npos) image += text.substr(end + 1);
        fuzz_header(std::as_bytes(std::span(image)));
      }
    }
  } catch (const Error& error) {
    one_line(error);
  }
  return 0;
}
