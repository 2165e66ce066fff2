#include "cache/prefix_cache.h"

#include <algorithm>
#include <stdexcept>

#include "cache/prefix_tree.h"

namespace fathom {
namespace {

constexpr int64_t kWindowsOfBlock = PrefixCache::kBlock / Cache::kWindowPage;
constexpr int64_t kBlocksOfPage = Cache::kEntryPage / PrefixCache::kBlock;
static_assert(kWindowsOfBlock == 2 && kBlocksOfPage == 2);

size_t common_prefix(std::span<const int32_t> a, std::span<const int32_t> b) {
  const size_t n = std::min(a.size(), b.size());
  return static_cast<size_t>(std::mismatch(a.begin(), a.begin() + static_cast<int64_t>(n), b.begin()).first -
                             a.begin());
}

std::array<int32_t, PrefixCache::kBlock> block_of(std::span<const int32_t> tokens, int64_t block) {
  std::array<int32_t, PrefixCache::kBlock> out;
  std::copy_n(tokens.begin() + block * PrefixCache::kBlock, PrefixCache::kBlock, out.begin());
  return out;
}

}  // namespace

PrefixCache::PrefixCache(Cache& cache) : cache_(cache) {}

PrefixCache::~PrefixCache() {
  clear();
}

PrefixCache::Match PrefixCache::match(std::string_view salt, std::span<const int32_t> tokens, int64_t limit) const {
  Match m;
  const auto root = roots_.find(salt);
  if (root == roots_.end()) return m;
  const Node* node = root->second.get();
  for (int64_t block = 0; (block + 1) * kBlock <= static_cast<int64_t>(tokens.size()); ++block) {
    const auto child = node->children.find(block_of(tokens, block));
    if (child == node->children.end()) break;
    m.path.push_back(child->second.get());
    node = m.path.back();
  }
  for (size_t depth = m.path.size();; --depth) {
    const Node& at = depth == 0 ? *root->second : *m.path[depth - 1];
    if (match_tail(m, at, tokens.subspan(depth * kBlock), limit)) break;
    if (depth == 0 || match_block(m, depth - 1, limit)) break;
  }
  return m;
}

/// The tail behind `node` that most of `rest` can go on from.
bool PrefixCache::match_tail(Match& m, const Node& node, std::span<const int32_t> rest, int64_t limit) const {
  for (const auto& tail : node.tails) {
    const int64_t rows = node.end() + static_cast<int64_t>(common_prefix(tail->tokens, rest));
    const int64_t length = std::min(rows, limit);
    const int64_t oldest = std::max<int64_t>(0, length - cache_.config().window + 1);
    if (length <= m.length) continue;
    if (!cache_.rings_hold(tail->rings, length) || oldest / Cache::kWindowPage < tail->first_window) continue;
    m.node = &node, m.tail = tail.get(), m.length = length, m.rows = rows;
  }
  return m.node != nullptr;
}

/// Behind block `depth` itself: the last tokens are fed again, so the window before them must be there.
bool PrefixCache::match_block(Match& m, size_t depth, int64_t limit) const {
  const Node& node = *m.path[depth];
  const int64_t length = Cache::feed_from(node.end());
  const int64_t oldest = std::max<int64_t>(0, length - cache_.config().window + 1);
  if (length > limit || length <= 0) return false;
  for (int64_t page = oldest / Cache::kWindowPage; page * Cache::kWindowPage < node.end(); ++page) {
    const Node& owner = *m.path[static_cast<size_t>(page / kWindowsOfBlock)];
    if (owner.window_pages[page % kWindowsOfBlock] < 0) return false;
  }
  m.node = &node, m.length = length, m.rows = node.end();
  return true;
}

Resume PrefixCache::resume_from(const Match& m) const {
  Resume r;
  r.rows = m.rows, r.length = m.length;
  const int64_t blocks = m.node->end() / kBlock;
  const auto window_pages = (r.rows + Cache::kWindowPage - 1) / Cache::kWindowPage;
  const auto entry_pages = (r.rows + Cache::kEntryPage - 1) / Cache::kEntryPage;
  r.window_pages.assign(static_cast<size_t>(window_pages), -1);
  const int64_t oldest = std::max<int64_t>(0, m.length - cache_.config().window + 1) / Cache::kWindowPage;
  for (int64_t page = oldest; page < window_pages; ++page) {
    int32_t& out = r.window_pages[static_cast<size_t>(page)];
    if (m.tail)
      out = m.tail->window_pages[static_cast<size_t>(page - m.tail->first_window)];
    else
      out = m.path[static_cast<size_t>(page / kWindowsOfBlock)]->window_pages[page % kWindowsOfBlock];
  }
  for (int64_t page = 0; page < entry_pages; ++page) {
    const int64_t last = std::min(blocks, (page + 1) * kBlocksOfPage) - 1;  // its page has the blocks before it as well
    if (m.tail && m.rows > m.node->end() && page + 1 == entry_pages)
      r.entry_pages.push_back(m.tail->entry_page);
    else
      r.entry_pages.push_back(m.path[static_cast<size_t>(last)]->entry_page);
  }
  if (m.tail) r.state = m.tail->state, r.rings = m.tail->rings;
  return r;
}

PrefixCache::Hit PrefixCache::find(std::string_view salt, std::span<const int32_t> tokens, int64_t limit) const {
  const Match m = match(salt, tokens, limit);
  if (!m.node) return {};
  const Resume r = resume_from(m);
  Hit hit{r.length, r.rows, {}, {}};
  for (int32_t page : r.window_pages)
    if (page >= 0) ++hit.pages.window, hit.cached.window += cache_.windows().references(page) == 0;
  for (int32_t page : r.entry_pages) ++hit.pages.entry, hit.cached.entry += cache_.entries().references(page) == 0;
  return hit;
}

SequenceId PrefixCache::open(std::string_view salt, std::span<const int32_t> tokens, int64_t limit) {
  const Match m = match(salt, tokens, limit);
  const SequenceId id = m.node ? cache_.create_from(resume_from(m)) : cache_.create();
  touch(m);
  ++stats_.opened, stats_.opened_tokens += static_cast<int64_t>(tokens.size());
  stats_.hits += m.node != nullptr, stats_.hit_tokens += m.length;
  return id;
}

void PrefixCache::touch(const Match& m) {
  const int64_t now = ++clock_;
  for (Node* node : m.path) set_used(*node, now);
  if (m.tail) {
    Tail& tail = const_cast<Tail&>(*m.tail);  // ours: match() only looked
    tails_.erase(&tail);
    tail.used = now;
    tails_.insert(&tail);
  }
  if (m.node && m.node->parent) mark(m.path[static_cast<size_t>(m.node->depth)]);
}

/// The window rows of the node are worth keeping: a sequence goes on, or may go on, behind it.
void PrefixCache::mark(Node* node) {
  for (Node* n : {node, node->parent}) {
    if (!n->parent) continue;
    windowed_.erase(n);
    n->landmark = true, n->window_used = clock_;
    if (n->has_windows()) windowed_.insert(n);
  }
}

void PrefixCache::set_used(Node& node, int64_t now) {
  const bool leaf = leaves_.erase(&node) > 0;
  node.used = now;
  if (leaf) leaves_.insert(&node);
}

void PrefixCache::keep(SequenceId id, std::string_view salt, std::span<const int32_t> tokens) {
  // A page that is not full will be written to by the sequence: it stays its own until then.
  const int64_t blocks = cache_.rows(id) / Cache::kEntryPage * kBlocksOfPage;
  if (blocks > 0) insert(id, salt, tokens, blocks);
}

void PrefixCache::keep_end(SequenceId id, std::string_view salt, std::span<const int32_t> tokens) {
  const int64_t blocks = cache_.rows(id) / kBlock;
  if (blocks > 0) mark(&insert(id, salt, tokens, blocks));
}

void PrefixCache::close(SequenceId id, std::string_view salt, std::span<const int32_t> tokens) {
  const int64_t rows = cache_.rows(id), blocks = rows / kBlock;
  if (rows == 0) return cache_.release(id);
  Node& node = insert(id, salt, tokens, blocks);
  if (node.parent) mark(&node);
  add_tail(node, id, tokens.subspan(static_cast<size_t>(blocks * kBlock), static_cast<size_t>(rows - blocks * kBlock)));
  remove_empty_roots();
}

PrefixCache::Node& PrefixCache::insert(SequenceId id, std::string_view salt, std::span<const int32_t> tokens,
                                       int64_t blocks) {
  if (static_cast<int64_t>(tokens.size()) < cache_.rows(id)) throw std::logic_error("PrefixCache: tokens are missing");
  auto root = roots_.find(salt);
  if (root == roots_.end()) {
    root = roots_.emplace(std::string(salt), std::make_unique<Node>()).first;
    root->second->salt = &root->first;
    empty_roots_.insert(root->second.get());  // until something is put in
  }
  const int64_t now = ++clock_;
  Node* node = root->second.get();
  for (int64_t block = 0; block < blocks; ++block) {
    const auto [place, fresh] = node->children.try_emplace(block_of(tokens, block));
    if (fresh) {
      leaves_.erase(node);
      place->second = std::make_unique<Node>();
      Node& child = *place->second;
      child.parent = node, child.key = &place->first, child.depth = block, child.serial = ++serial_;
      leaves_.insert(&child);
      ++stats_.blocks;
    }
    fill(*place->second, id, block);
    node = place->second.get();
    set_used(*node, now);
  }
  return *node;
}

/// Gives the node the pages that it lacks.
void PrefixCache::fill(Node& node, SequenceId id, int64_t block) {
  PagePool& entries = cache_.entries();
  if (node.entry_page < 0) {
    node.entry_page = cache_.entry_pages(id)[static_cast<size_t>(block / kBlocksOfPage)];
    entries.hold(node.entry_page);
    Node& before = *node.parent;
    if (block % kBlocksOfPage != 0 && before.entry_page != node.entry_page) {
      // The page was copied when the second half was written: the copy has both, the other one is not needed.
      entries.hold(node.entry_page);
      entries.drop(before.entry_page);
      before.entry_page = node.entry_page;
    }
  }
  const auto pages = cache_.window_pages(id);
  bool added = false;
  for (int64_t i = 0; i < kWindowsOfBlock; ++i) {
    const int32_t page = pages[static_cast<size_t>(block * kWindowsOfBlock + i)];
    if (node.window_pages[i] >= 0 || page < 0) continue;
    if (!added) windowed_.erase(&node);
    added = true;
    node.window_pages[i] = page;
    cache_.windows().hold(page);
  }
  if (!added) return;
  node.window_used = clock_;
  windowed_.insert(&node);
}

/// Releases the sequence, and keeps its rest behind `node` where possible.
void PrefixCache::add_tail(Node& node, SequenceId id, std::span<const int32_t> rest) {
  const int64_t length = cache_.length(id);
  const auto pages = cache_.window_pages(id);
  const RingRange rings = cache_.rings(id);
  const int64_t needed = std::max<int64_t>(0, length - cache_.config().window + 1) / Cache::kWindowPage;
  // A few tokens more than the window: a sequence that goes on from a little earlier can use them.
  int64_t first = std::max<int64_t>(0, length - cache_.config().window + 1 - Cache::kRing4) / Cache::kWindowPage;
  while (first < static_cast<int64_t>(pages.size()) && pages[static_cast<size_t>(first)] < 0) ++first;
  const auto same = std::find_if(node.tails.begin(), node.tails.end(),
                                 [&](const auto& t) { return std::ranges::equal(t->tokens, rest); });
  if (same != node.tails.end()) {
    tails_.erase(same->get());
    (*same)->used = clock_;
    tails_.insert(same->get());
  }
  const bool useful =
      same == node.tails.end() && length == cache_.rows(id) && first <= needed && cache_.rings_hold(rings, length);
  if (useful && !cache_.can_snapshot() && !tails_.empty()) remove_tail(**tails_.begin()), ++stats_.evicted_tails;
  if (!useful || !cache_.can_snapshot()) return cache_.release(id);

  auto tail = std::make_unique<Tail>();
  tail->node = &node, tail->serial = ++serial_, tail->used = clock_;
  tail->tokens.assign(rest.begin(), rest.end());
  tail->rings = rings;
  tail->first_window = first;
  const int64_t end = (length + Cache::kWindowPage - 1) / Cache::kWindowPage;
  tail->window_pages.assign(pages.begin() + first, pages.begin() + end);
  for (int32_t page : tail->window_pages) cache_.windows().hold(page);
  if (!rest.empty()) {
    tail->entry_page = cache_.entry_pages(id)[static_cast<size_t>(node.end() / Cache::kEntryPage)];
    cache_.entries().hold(tail->entry_page);
  }
  tail->state = cache_.release_to_snapshot(id);
  leaves_.erase(&node);
  tails_.insert(tail.get());
  node.tails.push_back(std::move(tail));
}

PrefixCache::Stats PrefixCache::stats() const {
  Stats s = stats_;
  s.tails = static_cast<int64_t>(tails_.size());
  return s;
}

}  // namespace fathom
