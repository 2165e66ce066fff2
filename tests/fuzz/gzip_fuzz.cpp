// Gzip files from hostile hands: bounded output in any read size, an Error or a truncation, never a crash or a hang.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "formats/gzip.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fathom;
  if (size < 2) return 0;
  const size_t piece = std::max<size_t>(1, data[0] * size_t{40});
  std::string buffer(piece, '\0');
  try {
    GzipReader reader({reinterpret_cast<const std::byte*>(data) + 1, size - 1}, "x.gz");
    uint64_t total = 0;
    while (const size_t n = reader.read(buffer)) {
      if (n > piece) std::abort();
      total += n;
      if (total > (uint64_t{16} << 20)) return 0;  // a bomb: the caller decides how much it takes
    }
    if (reader.decompressed_offset() != total || reader.compressed_offset() > reader.compressed_size()) std::abort();
  } catch (const Error&) {
  }
  return 0;
}
