// What the prefix cache gives up when pages are lacking, and its books.
#include <algorithm>
#include <stdexcept>

#include "cache/prefix_cache.h"
#include "cache/prefix_tree.h"

namespace fathom {

bool PrefixCache::ByUse::operator()(const Node* a, const Node* b) const {
  return a->used != b->used ? a->used < b->used : a->serial < b->serial;
}

bool PrefixCache::ByUse::operator()(const Tail* a, const Tail* b) const {
  return a->used != b->used ? a->used < b->used : a->serial < b->serial;
}

/// Blocks where nobody ended or resumed come first; of blocks used together, those further from the end.
bool PrefixCache::ByWindowUse::operator()(const Node* a, const Node* b) const {
  if (a->landmark != b->landmark) return b->landmark;
  if (a->window_used != b->window_used) return a->window_used < b->window_used;
  return a->depth != b->depth ? a->depth < b->depth : a->serial < b->serial;
}

bool PrefixCache::reserve(SequenceId id, int64_t tokens) {
  return make_room(cache_.pages_to_reserve(id, tokens)) && cache_.reserve(id, tokens);
}

bool PrefixCache::make_room(const PageCount& pages) {
  const PagePool &windows = cache_.windows(), &entries = cache_.entries();
  if (windows.free() + windows.cached() < pages.window || entries.free() + entries.cached() < pages.entry) return false;
  // Giving up a block whose page a sequence has as well frees nothing now: those come last.
  const auto evict_until = [&](const PagePool& pool, int64_t wanted, bool (PrefixCache::*evict)(bool in_use_too)) {
    while (pool.free() < wanted)
      if (!(this->*evict)(false) && !(this->*evict)(true))
        throw std::logic_error("PrefixCache: cached pages that nothing holds");
  };
  evict_until(entries, pages.entry, &PrefixCache::evict_oldest);
  evict_until(windows, pages.window, &PrefixCache::evict_window);
  remove_empty_roots();
  return true;
}

/// The tail or the leaf that was not used for longest.
bool PrefixCache::evict_oldest(bool in_use_too) {
  const auto leaf = std::find_if(leaves_.begin(), leaves_.end(), [&](const Node* n) {
    return in_use_too || cache_.entries().references(n->entry_page) == 0;
  });
  const auto tail = tails_.begin();
  if (tail != tails_.end() && (leaf == leaves_.end() || (*tail)->used <= (*leaf)->used)) {
    remove_tail(**tail);
    ++stats_.evicted_tails;
  } else if (leaf != leaves_.end()) {
    remove_leaf(**leaf);
    ++stats_.evicted_blocks;
  } else {
    return false;
  }
  return true;
}

/// Window rows of the block where they are of least use, or the oldest tail.
bool PrefixCache::evict_window(bool in_use_too) {
  const PagePool& windows = cache_.windows();
  const auto frees = [&](int32_t page) { return page >= 0 && windows.references(page) == 0; };
  const auto node = std::find_if(windowed_.begin(), windowed_.end(), [&](const Node* n) {
    return in_use_too || std::any_of(std::begin(n->window_pages), std::end(n->window_pages), frees);
  });
  const auto tail = tails_.begin();
  const bool have_node = node != windowed_.end(), have_tail = tail != tails_.end();
  if (have_node && (!have_tail || !(*node)->landmark || (*node)->window_used < (*tail)->used)) {
    drop_windows(**node);
    ++stats_.evicted_windows;
  } else if (have_tail) {
    remove_tail(**tail);
    ++stats_.evicted_tails;
  } else {
    return false;
  }
  return true;
}

void PrefixCache::drop_windows(Node& node) {
  windowed_.erase(&node);
  for (int32_t& page : node.window_pages) {
    if (page >= 0) cache_.windows().drop(page);
    page = -1;
  }
}

/// Puts a node that has lost its last child or tail where it can be given up.
void PrefixCache::after_loss(Node& node) {
  if (!node.children.empty() || !node.tails.empty()) return;
  if (node.parent)
    leaves_.insert(&node);
  else
    empty_roots_.insert(&node);
}

void PrefixCache::remove_leaf(Node& node) {
  Node& parent = *node.parent;
  leaves_.erase(&node);
  drop_windows(node);
  cache_.entries().drop(node.entry_page);
  --stats_.blocks;
  parent.children.erase(parent.children.find(*node.key));
  after_loss(parent);
}

void PrefixCache::remove_tail(Tail& tail) {
  Node& node = *tail.node;
  tails_.erase(&tail);
  for (int32_t page : tail.window_pages) cache_.windows().drop(page);
  if (tail.entry_page >= 0) cache_.entries().drop(tail.entry_page);
  cache_.free_snapshot(tail.state);
  node.tails.erase(std::find_if(node.tails.begin(), node.tails.end(), [&](const auto& t) { return t.get() == &tail; }));
  after_loss(node);
}

void PrefixCache::remove_empty_roots() {
  for (Node* root : empty_roots_)
    if (root->children.empty() && root->tails.empty()) roots_.erase(roots_.find(*root->salt));
  empty_roots_.clear();
}

void PrefixCache::forget(std::string_view salt, std::span<const int32_t> tokens) {
  const auto root = roots_.find(salt);
  if (root == roots_.end()) return;
  Match m = match(salt, tokens, 0);
  m.path.insert(m.path.begin(), root->second.get());
  for (auto node = m.path.rbegin(); node != m.path.rend(); ++node) {
    while (!(*node)->tails.empty()) remove_tail(*(*node)->tails.back());
    if (!(*node)->children.empty() || !(*node)->parent) break;
    remove_leaf(**node);
  }
  remove_empty_roots();
}

void PrefixCache::clear() {
  while (evict_oldest(true)) {
  }
  remove_empty_roots();
}

void PrefixCache::check() const {
  const auto wrong = [](const char* what) { throw std::logic_error(std::string("PrefixCache: ") + what); };
  std::vector<int32_t> windows(static_cast<size_t>(cache_.windows().total()), 0),
      entries(static_cast<size_t>(cache_.entries().total()), 0);
  int64_t blocks = 0, tails = 0, leaves = 0, windowed = 0;
  std::vector<const Node*> left;
  for (const auto& [salt, root] : roots_) {
    if (root->children.empty() && root->tails.empty()) wrong("an empty root");
    left.push_back(root.get());
  }
  const auto hold = [](std::vector<int32_t>& counts, int32_t page) { ++counts.at(static_cast<size_t>(page)); };
  while (!left.empty()) {
    const Node& node = *left.back();
    left.pop_back();
    for (const auto& [key, child] : node.children) {
      if (child->parent != &node || child->key != &key || child->depth != node.depth + 1) wrong("a broken tree");
      if (child->used > node.used && node.parent) wrong("a block used later than the one before it");
      left.push_back(child.get());
    }
    for (const auto& tail : node.tails) {
      if (!tails_.contains(tail.get()) || tail->tokens.size() >= kBlock) wrong("a tail out of place");
      for (int32_t page : tail->window_pages) hold(windows, page);
      if (tail->entry_page >= 0) hold(entries, tail->entry_page);
      ++tails;
    }
    if (!node.parent) continue;
    ++blocks;
    hold(entries, node.entry_page);
    for (int32_t page : node.window_pages)
      if (page >= 0) hold(windows, page);
    const bool leaf = node.children.empty() && node.tails.empty();
    auto* const place = const_cast<Node*>(&node);  // the sets' type of key
    if (leaves_.contains(place) != leaf || windowed_.contains(place) != node.has_windows()) wrong("a set is wrong");
    leaves += leaf, windowed += node.has_windows();
  }
  const auto count = [](const auto& set) { return static_cast<int64_t>(set.size()); };
  if (blocks != stats_.blocks || leaves != count(leaves_) || windowed != count(windowed_) || tails != count(tails_))
    wrong("something is counted that is not there");
  if (tails != cache_.usage().snapshots_used) wrong("snapshots lost");
  for (size_t page = 0; page < windows.size(); ++page)
    if (windows[page] != cache_.windows().holds(static_cast<int32_t>(page))) wrong("wrong count of a window page");
  for (size_t page = 0; page < entries.size(); ++page)
    if (entries[page] != cache_.entries().holds(static_cast<int32_t>(page))) wrong("wrong count of an entry page");
}

}  // namespace fathom
