#include "trace/text_source.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "formats/gzip.h"

namespace fathom::trace {
namespace {

class PlainSource final : public TextSource {
 public:
  PlainSource(std::string_view text, const MappedFile* file) : file_(file) {
    window_ = text;
    last_ = true;
  }
  void advance(size_t consumed) override {
    window_.remove_prefix(consumed);
    offset_ += consumed;
    if (file_ && offset_ > released_ + (size_t{32} << 20)) {
      file_->release(released_, offset_);
      released_ = offset_;
    }
  }
  void grow() override {}
  uint64_t file_position() const override { return offset_; }

 private:
  const MappedFile* file_;
  uint64_t released_ = 0;
};

/// A block of inflated text with room in front, where the rest of the window before it is put.
struct Block {
  std::unique_ptr<char[]> storage;
  size_t headroom = 0, size = 0, capacity = 0;
  char* text() const { return storage.get() + headroom; }

  static Block make(size_t headroom, size_t size) {
    return {std::unique_ptr<char[]>(new char[headroom + size]), headroom, size, size};
  }
};

class GzipSource final : public TextSource {
 public:
  GzipSource(std::span<const std::byte> bytes, const std::string& name, size_t block_bytes)
      : reader_(bytes, name), block_bytes_(std::max<size_t>(block_bytes, 1)) {
    thread_ = std::thread([this] { inflate(); });
    grow();
  }
  ~GzipSource() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void advance(size_t consumed) override {
    offset_ += consumed;
    window_.remove_prefix(consumed);
  }
  void grow() override {
    if (last_) return;
    std::string_view rest = window_;
    size_t gained = 0;
    do {
      Block block = next();
      if (!block.storage) {
        last_ = true;
        break;
      }
      gained += block.size;
      rest = join(rest, std::move(block));
    } while (gained < rest.size() - gained);
    window_ = rest;
  }

  uint64_t file_position() const override {
    const std::lock_guard lock(mutex_);
    return position_;
  }
  std::string damage() const override {
    const std::lock_guard lock(mutex_);
    return damage_;
  }

 private:
  /// Puts `rest` in front of the block; the window then lives in current_.
  std::string_view join(std::string_view rest, Block block) {
    if (rest.size() <= block.headroom) {
      char* begin = block.text() - rest.size();
      if (!rest.empty()) std::memcpy(begin, rest.data(), rest.size());
      const std::string_view joined(begin, rest.size() + block.size);
      give_back(std::exchange(current_, std::move(block)));
      return joined;
    }
    Block larger = Block::make(0, rest.size() + block.size);
    if (!rest.empty()) std::memcpy(larger.text(), rest.data(), rest.size());
    std::memcpy(larger.text() + rest.size(), block.text(), block.size);
    give_back(std::move(block));
    give_back(std::exchange(current_, std::move(larger)));
    return {current_.text(), current_.size};
  }

  /// Blocks go round, so that hundreds of megabytes are not allocated and freed.
  void give_back(Block block) {
    const std::lock_guard lock(mutex_);
    if (block.storage && block.capacity == block_bytes_ && spare_.size() < 3) spare_.push_back(std::move(block));
  }

  Block empty_block() {
    const std::lock_guard lock(mutex_);
    if (spare_.empty()) return Block::make(std::min(block_bytes_, size_t{1} << 20), block_bytes_);
    Block block = std::move(spare_.back());
    spare_.pop_back();
    return block;
  }

  Block next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !ready_.empty() || done_; });
    if (ready_.empty()) return {};
    Block block = std::move(ready_.front());
    ready_.pop_front();
    changed_.notify_all();
    return block;
  }

  void inflate() {
    std::string damage;
    try {
      for (;;) {
        Block block = empty_block();
        try {
          block.size = reader_.read({block.text(), block_bytes_});
        } catch (const Error& e) {
          damage = e.what();
          break;
        }
        std::unique_lock lock(mutex_);
        position_ = reader_.compressed_offset();
        if (block.size == 0) break;
        changed_.wait(lock, [&] { return ready_.size() < 2 || stop_; });
        if (stop_) return;
        ready_.push_back(std::move(block));
        changed_.notify_all();
      }
      if (damage.empty() && reader_.truncated())
        damage = fmt::format("the gzip stream is cut off at byte {} of the file", reader_.compressed_offset());
    } catch (const std::bad_alloc&) {
      damage = "out of memory while decompressing";
    }
    const std::lock_guard lock(mutex_);
    damage_ = std::move(damage);
    done_ = true;
    changed_.notify_all();
  }

  GzipReader reader_;
  size_t block_bytes_;
  Block current_;
  std::thread thread_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Block> ready_;
  std::vector<Block> spare_;
  std::string damage_;
  uint64_t position_ = 0;
  bool done_ = false, stop_ = false;
};

}  // namespace

std::unique_ptr<TextSource> plain_text_source(std::string_view text, const MappedFile* file) {
  return std::make_unique<PlainSource>(text, file);
}

std::unique_ptr<TextSource> gzip_text_source(std::span<const std::byte> bytes, const std::string& name,
                                             size_t block_bytes) {
  return std::make_unique<GzipSource>(bytes, name, block_bytes);
}

}  // namespace fathom::trace
