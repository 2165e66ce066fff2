// Nodes and tails of the prefix cache's tree. For prefix_cache.cpp and prefix_evict.cpp alone.
#pragma once

#include "cache/prefix_cache.h"

namespace fathom {

struct PrefixCache::Node {
  Node* parent = nullptr;             // null: a root, which holds no block
  const Block* key = nullptr;         // in the parent's map
  const std::string* salt = nullptr;  // of a root: in the map of roots
  int64_t depth = -1;                 // number of its block in the sequence; root -1
  int64_t serial = 0;
  int64_t used = 0;         // clock of the last insertion or hit that went through it
  int32_t entry_page = -1;  // has the rows of this block and, of the same page, those before it
  int32_t window_pages[2] = {-1, -1};
  int64_t window_used = 0;  // clock of the last time its window rows served or may serve a resumption
  bool landmark = false;    // a sequence ended here or started from here
  std::map<Block, std::unique_ptr<Node>> children;
  std::vector<std::unique_ptr<Tail>> tails;

  int64_t end() const { return (depth + 1) * kBlock; }  // tokens up to and including the block
  bool has_windows() const { return window_pages[0] >= 0 || window_pages[1] >= 0; }
};

struct PrefixCache::Tail {
  Node* node = nullptr;         // behind its block
  std::vector<int32_t> tokens;  // fewer than kBlock
  int64_t serial = 0;
  int64_t used = 0;
  int64_t first_window = 0;  // position / 64 of the first of window_pages
  std::vector<int32_t> window_pages;
  int32_t entry_page = -1;  // of the tokens; -1 without tokens
  int32_t state = -1;
  RingRange rings;
};

}  // namespace fathom
