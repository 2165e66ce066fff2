// Safetensors images for tests, sound or spoiled on purpose.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fathom {

/// 8 bytes of length, the header as given, then `data_bytes` bytes 0, 1, 2, ...
inline std::string safetensors_image(std::string_view header, size_t data_bytes, uint64_t length) {
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>(length >> (8 * i));
  out += header;
  for (size_t i = 0; i < data_bytes; ++i) out += static_cast<char>(i);
  return out;
}

inline std::string safetensors_image(std::string_view header, size_t data_bytes) {
  return safetensors_image(header, data_bytes, header.size());
}

/// One member of the header: "name":{...} for one row of bytes.
inline std::string byte_tensor(std::string_view name, size_t begin, size_t end) {
  return fmt::format(R"("{}":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}})", name, end - begin, begin, end);
}

/// A sound file with U8 tensors of 4 bytes each.
inline std::string byte_file(const std::vector<std::string>& names) {
  std::string header = "{";
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) header += ",";
    header += byte_tensor(names[i], 4 * i, 4 * i + 4);
  }
  return safetensors_image(header + "}", 4 * names.size());
}

}  // namespace fathom
