#include "cache/cache.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "base/error.h"

namespace fathom {
namespace {

constexpr int64_t pages_for(int64_t tokens, int64_t page) {
  return (tokens + page - 1) / page;
}

/// Pages of both pools for a budget. A sequence wastes part of its last page, so each gets one page on top.
PageCount pool_pages(const CacheBudget& b) {
  const int64_t window_tokens = b.window_tokens > 0 ? b.window_tokens : b.tokens;
  return {pages_for(window_tokens, Cache::kWindowPage) + b.sequences,
          pages_for(b.tokens, Cache::kEntryPage) + b.sequences};
}

int64_t states_of(const CacheBudget& b) {
  return int64_t{b.sequences} + b.snapshots;
}

int rows_of(int ratio) {
  return Cache::kEntryPage / ratio;
}
int ring_of(int ratio) {
  return ratio == 4 ? Cache::kRing4 : Cache::kRing128;
}

int32_t checked_pages(int64_t n, const char* what) {
  if (n < 1 || n > (int64_t{1} << 30) / Cache::kEntryPage)
    fail("cache: {} pages of {} cannot be numbered; lower the token budget", n, what);
  return static_cast<int32_t>(n);
}

}  // namespace

Cache::Cache(const ModelConfig& config, const CacheBudget& budget, std::shared_ptr<ops::ComputeDevice> device)
    : Cache(config, budget, std::vector{std::move(device)}) {}

Cache::Cache(const ModelConfig& config, const CacheBudget& budget,
             const std::vector<std::shared_ptr<ops::ComputeDevice>>& devices)
    : config_(config),
      budget_(budget),
      windows_(checked_pages(pool_pages(budget).window, "window rows")),
      entries_(checked_pages(pool_pages(budget).entry, "entries")),
      sequences_(static_cast<size_t>(budget.sequences)) {
  for (int32_t i = budget.sequences - 1; i >= 0; --i) free_ids_.push_back(i);
  for (auto i = static_cast<int32_t>(states_of(budget)) - 1; i >= 0; --i) free_states_.push_back(i);
  for (const auto& device : devices) {
    SizeMemory size(device);
    make_layers(size);
    Twin twin{make_memory(device), {}};
    twin.memory->reserve(size.allocated());
    twin.layers = make_layers(*twin.memory);
    twins_.push_back(std::move(twin));
  }
}

int64_t Cache::bytes_needed(const ModelConfig& c, const CacheBudget& b) {
  const PageCount pages = pool_pages(b);
  int64_t bytes = (c.num_layers + b.draft_stages) * pages.window * ops::page_bytes(ops::RowFormat::v4, kWindowPage);
  for (int i = 0; i < c.num_layers; ++i) {
    const int ratio = c.ratio(i);
    if (ratio == 0) continue;
    bytes += pages.entry * ops::page_bytes(ops::RowFormat::v4, rows_of(ratio));
    bytes += states_of(b) * ring_of(ratio) * (ratio == 4 ? 2 : 1) * c.head_dim * 8;
    if (ratio == 4) {
      bytes += pages.entry * ops::index_page_bytes(rows_of(4));
      bytes += states_of(b) * kRing4 * 2 * c.index_head_dim * 8;
    }
  }
  return bytes;
}

std::vector<LayerCache> Cache::make_layers(WeightMemory& memory) const {
  std::vector<LayerCache> layers;
  const auto format = ops::RowFormat::v4;
  const auto floats = [&](int64_t ring, int64_t width) {
    const int64_t states = states_of(budget_), count = states * ring * width;
    return View<float, 3>(reinterpret_cast<float*>(memory.allocate(static_cast<size_t>(count) * sizeof(float))), states,
                          ring, width);
  };
  const auto bytes = [&](int64_t page, int32_t pages) { return memory.allocate(static_cast<size_t>(page * pages)); };
  for (int i = 0; i < config_.num_layers + budget_.draft_stages; ++i) {
    LayerCache layer;
    layer.format = format;
    const int64_t window = ops::page_bytes(format, kWindowPage);
    layer.window = {bytes(window, windows_.total()), window, kWindowPage};
    const int ratio = i < config_.num_layers ? config_.ratio(i) : 0;
    if (ratio > 0) {
      const int32_t rows = rows_of(ratio);
      const int64_t page = ops::page_bytes(format, rows), width = (ratio == 4 ? 2 : 1) * config_.head_dim;
      layer.entries = {bytes(page, entries_.total()), page, rows};
      layer.state_k = floats(ring_of(ratio), width);
      layer.state_g = floats(ring_of(ratio), width);
    }
    if (ratio == 4) {
      const int64_t page = ops::index_page_bytes(rows_of(4));
      layer.index = {bytes(page, entries_.total()), page, rows_of(4)};
      layer.index_state_k = floats(kRing4, 2 * config_.index_head_dim);
      layer.index_state_g = floats(kRing4, 2 * config_.index_head_dim);
    }
    layers.push_back(layer);
  }
  return layers;
}

Cache::Sequence& Cache::at(SequenceId id) {
  return const_cast<Sequence&>(std::as_const(*this).at(id));
}

const Cache::Sequence& Cache::at(SequenceId id) const {
  const auto i = static_cast<size_t>(id);
  if (i >= sequences_.size() || !sequences_[i].alive) throw std::logic_error("Cache: no such sequence");
  return sequences_[i];
}

SequenceId Cache::create() {
  if (free_ids_.empty()) fail("cache: all {} sequences are in use", budget_.sequences);
  const int32_t id = free_ids_.back();
  free_ids_.pop_back();
  Sequence& s = sequences_[static_cast<size_t>(id)];
  s = Sequence{};
  s.alive = true;
  s.state = free_states_.back();  // there are as many as sequences and snapshots together
  free_states_.pop_back();
  return SequenceId{id};
}

SequenceId Cache::fork(SequenceId id) {
  const Sequence& from = at(id);
  return create_from({from.written, from.length, from.window_pages, from.entry_pages, from.state, rings(id)});
}

SequenceId Cache::create_from(const Resume& r) {
  if (r.length < 0 || r.length > r.rows ||
      static_cast<int64_t>(r.window_pages.size()) < pages_for(r.rows, kWindowPage) ||
      static_cast<int64_t>(r.entry_pages.size()) < pages_for(r.rows, kEntryPage))
    throw std::logic_error("Cache::create_from: pages and lengths do not fit");
  const SequenceId id = create();
  Sequence& s = at(id);
  s.length = r.length, s.written = r.rows;
  s.state_from = s.reached = r.length;
  if (r.state >= 0) {
    s.state_from = r.rings.from, s.reached = r.rings.reached;
    copy_state(r.state, s.state);
  }
  s.window_pages = r.window_pages, s.entry_pages = r.entry_pages;
  s.window_pages.resize(static_cast<size_t>(pages_for(r.rows, kWindowPage)));  // no pages reserved and not written:
  s.entry_pages.resize(static_cast<size_t>(pages_for(r.rows, kEntryPage)));    // two would write them
  for (int32_t page : s.window_pages)
    if (page >= 0) windows_.share(page);
  for (int32_t page : s.entry_pages) entries_.share(page);
  return id;
}

void Cache::release_pages(Sequence& s) {
  for (int32_t page : s.window_pages)
    if (page >= 0) windows_.release(page);
  for (int32_t page : s.entry_pages) entries_.release(page);
}

void Cache::release(SequenceId id) {
  Sequence& s = at(id);
  release_pages(s);
  free_states_.push_back(s.state);
  free_ids_.push_back(static_cast<int32_t>(id));
  s = Sequence{};
}

int32_t Cache::release_to_snapshot(SequenceId id) {
  if (!can_snapshot()) throw std::logic_error("Cache: no room for a snapshot");
  Sequence& s = at(id);
  const int32_t state = s.state;
  release_pages(s);
  free_ids_.push_back(static_cast<int32_t>(id));
  ++snapshots_used_;
  s = Sequence{};
  return state;
}

void Cache::free_snapshot(int32_t state) {
  if (snapshots_used_ <= 0) throw std::logic_error("Cache: a snapshot freed twice");
  --snapshots_used_;
  free_states_.push_back(state);
}

Cache::Lacking Cache::lacking(const Sequence& s, int64_t tokens) const {
  const int64_t end = std::max(s.length + tokens, s.written);
  const auto window_have = static_cast<int64_t>(s.window_pages.size()),
             entry_have = static_cast<int64_t>(s.entry_pages.size());
  Lacking l;
  l.fresh.window = std::max<int64_t>(0, pages_for(end, kWindowPage) - window_have);
  l.fresh.entry = std::max<int64_t>(0, pages_for(end, kEntryPage) - entry_have);
  // Only the pages that hold the first unwritten token can be both ours and somebody else's: later ones are new.
  const int64_t w = s.written / kWindowPage, e = s.written / kEntryPage;
  const bool writes = s.length + tokens > s.written;
  l.copy_window = writes && w < window_have && windows_.shared(s.window_pages[static_cast<size_t>(w)]);
  l.copy_entry = writes && e < entry_have && entries_.shared(s.entry_pages[static_cast<size_t>(e)]);
  return l;
}

PageCount Cache::pages_to_reserve(SequenceId id, int64_t tokens) const {
  const Lacking l = lacking(at(id), tokens);
  return {l.fresh.window + l.copy_window, l.fresh.entry + l.copy_entry};
}

bool Cache::reserve(SequenceId id, int64_t tokens) {
  Sequence& s = at(id);
  const Lacking l = lacking(s, tokens);
  if (windows_.free() < l.fresh.window + l.copy_window || entries_.free() < l.fresh.entry + l.copy_entry) return false;

  const auto take_own = [this](PagePool& pool, int32_t& page, void (Cache::*copy)(int32_t from, int32_t to)) {
    const int32_t own = pool.acquire();
    (this->*copy)(page, own);
    pool.release(page);
    page = own;
  };
  if (l.copy_window)
    take_own(windows_, s.window_pages[static_cast<size_t>(s.written / kWindowPage)], &Cache::copy_window_page);
  if (l.copy_entry)
    take_own(entries_, s.entry_pages[static_cast<size_t>(s.written / kEntryPage)], &Cache::copy_entry_page);
  for (int64_t i = 0; i < l.fresh.window; ++i) s.window_pages.push_back(windows_.acquire());
  for (int64_t i = 0; i < l.fresh.entry; ++i) s.entry_pages.push_back(entries_.acquire());
  return true;
}

bool Cache::assume(SequenceId id, int64_t tokens) {
  Sequence& s = at(id);
  if (s.written > 0 || !s.window_pages.empty()) throw std::logic_error("Cache::assume: the sequence is not empty");
  const int64_t first_window = std::max<int64_t>(0, tokens - config_.window - kRing4) / kWindowPage;
  const PageCount need{pages_for(tokens, kWindowPage) - first_window, pages_for(tokens, kEntryPage)};
  if (windows_.free() < need.window || entries_.free() < need.entry) return false;
  s.window_pages.assign(static_cast<size_t>(first_window), -1);
  for (int64_t i = 0; i < need.window; ++i) s.window_pages.push_back(windows_.acquire());
  for (int64_t i = 0; i < need.entry; ++i) s.entry_pages.push_back(entries_.acquire());
  s.length = s.written = s.reached = tokens;
  return true;
}

void Cache::commit(SequenceId id, int64_t tokens) {
  Sequence& s = at(id);
  s.length += tokens;
  s.written = std::max(s.written, s.length);
  s.reached = std::max(s.reached, s.length);
  if (budget_.keep_window >= 0) drop_old_windows(s, budget_.keep_window);
}

void Cache::drop_old_windows(Sequence& s, int64_t keep) {
  const int64_t oldest = s.length - config_.window - keep;  // first token that must stay
  for (int64_t i = 0; (i + 1) * kWindowPage <= oldest; ++i) {
    int32_t& page = s.window_pages[static_cast<size_t>(i)];
    if (page < 0) continue;
    windows_.release(page);
    page = -1;
  }
}

bool Cache::rings_hold(const RingRange& rings, int64_t length) const {
  const int64_t need4 = std::max<int64_t>(0, length / 4 * 4 - 4), need128 = length / 128 * 128;
  const bool any4 = std::count(config_.compress_ratios.begin(), config_.compress_ratios.end(), 4) > 0;
  const bool any128 = std::count(config_.compress_ratios.begin(), config_.compress_ratios.end(), 128) > 0;
  const auto oldest = [&](int ring) { return std::max(rings.from, rings.reached - ring); };
  return (!any4 || need4 >= oldest(kRing4) || need4 == length) &&
         (!any128 || need128 >= oldest(kRing128) || need128 == length);
}

int64_t Cache::rollback(SequenceId id, int64_t length) {
  Sequence& s = at(id);
  if (length < 0 || length > s.length) throw std::logic_error("Cache::rollback beyond the sequence");
  int64_t from = length;
  if (!rings_hold(rings(id), length)) from = feed_from(length);
  const int64_t oldest = std::max<int64_t>(0, from - config_.window + 1) / kWindowPage;
  for (int64_t i = oldest; i < pages_for(length, kWindowPage); ++i)
    if (s.window_pages[static_cast<size_t>(i)] < 0) from = 0;  // its window is gone: everything has to be fed again
  if (from != length) s.state_from = s.reached = from;
  s.written = from == 0 ? 0 : length;
  s.length = from;
  while (static_cast<int64_t>(s.window_pages.size()) > pages_for(s.written, kWindowPage)) {
    if (s.window_pages.back() >= 0) windows_.release(s.window_pages.back());
    s.window_pages.pop_back();
  }
  while (static_cast<int64_t>(s.entry_pages.size()) > pages_for(s.written, kEntryPage)) {
    entries_.release(s.entry_pages.back());
    s.entry_pages.pop_back();
  }
  return from;
}

int32_t Cache::window_row(SequenceId id, int64_t position) const {
  return at(id).window_pages[static_cast<size_t>(position / kWindowPage)] * kWindowPage +
         static_cast<int32_t>(position % kWindowPage);
}

int32_t Cache::window_write_row(SequenceId id, int64_t position) const {
  return position < at(id).written ? -1 : window_row(id, position);
}

int32_t Cache::entry_row(SequenceId id, int ratio, int64_t entry) const {
  const int rows = rows_of(ratio);
  return at(id).entry_pages[static_cast<size_t>(entry / rows)] * rows + static_cast<int32_t>(entry % rows);
}

int32_t Cache::entry_write_row(SequenceId id, int ratio, int64_t entry) const {
  return entry < at(id).written / ratio ? -1 : entry_row(id, ratio, entry);
}

void Cache::set_draft_rows(View<const int32_t, 1> rows, bool there) {
  draft_rows_.resize(static_cast<size_t>(windows_.total()) * kWindowPage, 0);
  for (int64_t i = 0; i < rows.size[0]; ++i)
    if (rows(i) >= 0) draft_rows_[static_cast<size_t>(rows(i))] = there;
}

void Cache::copy_window_page(int32_t from, int32_t to) {
  if (!draft_rows_.empty())
    std::copy_n(draft_rows_.begin() + int64_t{from} * kWindowPage, kWindowPage,
                draft_rows_.begin() + int64_t{to} * kWindowPage);
  for (const Twin& twin : twins_)
    for (const LayerCache& l : twin.layers)
      twin.memory->device().copy(l.window.data + to * l.window.stride, l.window.data + from * l.window.stride,
                                 static_cast<size_t>(l.window.stride));
}

void Cache::copy_entry_page(int32_t from, int32_t to) {
  for (const Twin& twin : twins_) {
    ops::ComputeDevice& device = twin.memory->device();
    for (const LayerCache& l : twin.layers) {
      if (l.entries.data)
        device.copy(l.entries.data + to * l.entries.stride, l.entries.data + from * l.entries.stride,
                    static_cast<size_t>(l.entries.stride));
      if (l.index.data)
        device.copy(l.index.data + to * l.index.stride, l.index.data + from * l.index.stride,
                    static_cast<size_t>(l.index.stride));
    }
  }
}

void Cache::copy_state(int32_t from, int32_t to) {
  for (const Twin& twin : twins_) {
    const auto copy = [&](const View<float, 3>& v) {
      if (v.data)
        twin.memory->device().copy(&v(to, 0, 0), &v(from, 0, 0), static_cast<size_t>(v.stride[0]) * sizeof(float));
    };
    for (const LayerCache& l : twin.layers)
      copy(l.state_k), copy(l.state_g), copy(l.index_state_k), copy(l.index_state_g);
  }
}

Cache::Usage Cache::usage() const {
  return {windows_.total(),
          windows_.free(),
          entries_.total(),
          entries_.free(),
          budget_.sequences,
          static_cast<int32_t>(free_ids_.size()),
          static_cast<int64_t>(twins_.front().memory->allocated()),
          windows_.cached(),
          entries_.cached(),
          budget_.snapshots,
          snapshots_used_};
}

void Cache::check() const {
  const auto audit = [&](const PagePool& pool, auto pages_of, const char* what) {
    std::vector<int32_t> count(static_cast<size_t>(pool.total()), 0);
    for (const Sequence& s : sequences_)
      for (int32_t page : pages_of(s))
        if (page >= 0) ++count[static_cast<size_t>(page)];
    int32_t used = 0, cached = 0, unused = 0;
    for (int32_t p = 0; p < pool.total(); ++p) {
      if (count[static_cast<size_t>(p)] != pool.references(p))
        throw std::logic_error(std::string("Cache: wrong count of a page of ") + what);
      ++(pool.references(p) > 0 ? used : pool.holds(p) > 0 ? cached : unused);
    }
    if (unused != pool.free() || cached != pool.cached() || used != pool.used())
      throw std::logic_error(std::string("Cache: used + cached + free is not total for ") + what);
  };
  audit(
      windows_, [](const Sequence& s) -> const auto& { return s.window_pages; }, "window rows");
  audit(
      entries_, [](const Sequence& s) -> const auto& { return s.entry_pages; }, "entries");
  const auto alive = std::count_if(sequences_.begin(), sequences_.end(), [](const Sequence& s) { return s.alive; });
  if (alive + static_cast<int64_t>(free_ids_.size()) != budget_.sequences ||
      alive + snapshots_used_ + static_cast<int64_t>(free_states_.size()) != states_of(budget_))
    throw std::logic_error("Cache: sequences lost");
}

}  // namespace fathom
