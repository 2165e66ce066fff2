#include "formats/gzip.h"

#include <isa-l/igzip_lib.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "base/error.h"

namespace fathom {
namespace {

constexpr size_t max_step = size_t{1} << 30;         // isa-l counts in 32 bits
constexpr size_t release_step = size_t{64} << 20;    // how often consumed pages are dropped
constexpr size_t output_buffer = size_t{256} << 10;  // of the writer

const char* describe_error(int code) {
  switch (code) {
    case ISAL_INVALID_WRAPPER:
      return "a gzip header is damaged";
    case ISAL_UNSUPPORTED_METHOD:
      return "the compression method is not deflate";
    case ISAL_INCORRECT_CHECKSUM:
      return "the checksum does not match, the data before is damaged";
    default:
      return "the compressed data is damaged";
  }
}

}  // namespace

bool is_gzip(std::span<const std::byte> data) {
  return data.size() >= 2 && data[0] == std::byte{0x1f} && data[1] == std::byte{0x8b};
}

struct GzipReader::State {
  std::optional<MappedFile> map;
  std::span<const std::byte> data;
  std::string name;
  inflate_state inflate;
  size_t at = 0, released = 0;  // in `data`
  uint64_t delivered = 0;
  bool in_member = false, ended = false, truncated = false;
  std::string damage;  // of the next read

  void start_member() {
    isal_inflate_init(&inflate);
    inflate.crc_flag = ISAL_GZIP;
    in_member = true;
  }

  /// At the end of a member: what follows?
  void next_member() {
    const size_t end = at;
    while (at < data.size() && data[at] == std::byte{0}) ++at;
    if (at == data.size()) {
      ended = true;
    } else if (is_gzip(data.subspan(at)) || (data.size() - at == 1 && data[at] == std::byte{0x1f})) {
      start_member();
    } else {
      at = end;
      stop(fmt::format("{} bytes after the last gzip member are not gzip", data.size() - end));
    }
  }

  void stop(std::string_view what) {
    ended = true;
    damage = fmt::format("{}: byte {} of the compressed file: {}", name, at, what);
  }

  /// One call of the decompressor; returns the bytes written to `out`.
  size_t step(std::span<char> out) {
    const size_t input = std::min(data.size() - at, max_step), room = std::min(out.size(), max_step);
    // isa-l does not write through next_in; its type lacks the const.
    inflate.next_in = const_cast<uint8_t*>(reinterpret_cast<const uint8_t*>(data.data() + at));
    inflate.avail_in = static_cast<uint32_t>(input);
    inflate.next_out = reinterpret_cast<uint8_t*>(out.data());
    inflate.avail_out = static_cast<uint32_t>(room);
    const int code = isal_inflate(&inflate);
    const size_t consumed = input - inflate.avail_in, produced = room - inflate.avail_out;
    at += consumed;
    if (code < 0) {
      stop(describe_error(code));
    } else if (inflate.block_state == ISAL_BLOCK_FINISH) {
      in_member = false;
    } else if (consumed == 0 && produced == 0) {
      if (at == data.size())
        ended = truncated = true;
      else
        stop("the decompressor makes no progress");
    }
    if (map && at - released >= release_step) {
      map->release(released, at);
      released = at;
    }
    return produced;
  }
};

GzipReader::GzipReader(const std::filesystem::path& path) : state_(std::make_unique<State>()) {
  state_->map.emplace(path);
  state_->data = state_->map->bytes();
  state_->name = printable(path.string(), 400);
  if (!is_gzip(state_->data)) fail("{}: is not a gzip file", state_->name);
  state_->start_member();
}

GzipReader::GzipReader(std::span<const std::byte> data, std::string name) : state_(std::make_unique<State>()) {
  state_->data = data;
  state_->name = std::move(name);
  if (!is_gzip(data)) fail("{}: is not a gzip file", state_->name);
  state_->start_member();
}

GzipReader::~GzipReader() = default;
GzipReader::GzipReader(GzipReader&&) noexcept = default;
GzipReader& GzipReader::operator=(GzipReader&&) noexcept = default;

size_t GzipReader::read(std::span<char> out) {
  State& s = *state_;
  size_t got = 0;
  while (got < out.size() && !s.ended) {
    if (!s.in_member)
      s.next_member();
    else
      got += s.step(out.subspan(got));
  }
  s.delivered += got;
  if (got == 0 && !out.empty() && !s.damage.empty()) throw Error(s.damage);
  return got;
}

bool GzipReader::truncated() const {
  return state_->truncated;
}
uint64_t GzipReader::compressed_offset() const {
  return state_->at;
}
uint64_t GzipReader::compressed_size() const {
  return state_->data.size();
}
uint64_t GzipReader::decompressed_offset() const {
  return state_->delivered;
}

struct GzipWriter::State {
  explicit State(OutputFile& out) : file(out), work(ISAL_DEF_LVL1_DEFAULT), buffer(output_buffer) {
    isal_deflate_init(&stream);
    stream.gzip_flag = IGZIP_GZIP;
    stream.level = 1;
    stream.level_buf = work.data();
    stream.level_buf_size = static_cast<uint32_t>(work.size());
    stream.flush = NO_FLUSH;
  }

  OutputFile& file;
  isal_zstream stream;
  std::vector<uint8_t> work, buffer;
  bool finished = false;
};

GzipWriter::GzipWriter(OutputFile& file) : state_(std::make_unique<State>(file)) {}
GzipWriter::~GzipWriter() = default;

void GzipWriter::write(std::string_view text) {
  while (!text.empty()) {
    const std::string_view part = text.substr(0, max_step);
    deflate(part, false);
    text.remove_prefix(part.size());
  }
}

void GzipWriter::finish() {
  if (state_->finished) return;
  deflate({}, true);
  state_->finished = true;
}

void GzipWriter::deflate(std::string_view text, bool last) {
  State& s = *state_;
  if (s.finished) throw std::logic_error("GzipWriter: write after finish");
  s.stream.next_in = const_cast<uint8_t*>(reinterpret_cast<const uint8_t*>(text.data()));
  s.stream.avail_in = static_cast<uint32_t>(text.size());
  s.stream.end_of_stream = last ? 1 : 0;
  do {
    s.stream.next_out = s.buffer.data();
    s.stream.avail_out = static_cast<uint32_t>(s.buffer.size());
    if (const int code = isal_deflate(&s.stream); code != COMP_OK)
      throw std::logic_error(fmt::format("GzipWriter: isal_deflate returned {}", code));
    const size_t made = s.buffer.size() - s.stream.avail_out;
    s.file.write({reinterpret_cast<const char*>(s.buffer.data()), made});
  } while (s.stream.avail_out == 0 || (last && s.stream.internal_state.state != ZSTATE_END));
}

}  // namespace fathom
