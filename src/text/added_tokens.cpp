#include "text/added_tokens.h"

namespace fathom::text {

TokenTrie::TokenTrie() : nodes_(1) {}

uint32_t TokenTrie::child_of(uint32_t node, unsigned char byte) const {
  for (uint32_t c = nodes_[node].child; c != 0; c = nodes_[c].sibling)
    if (nodes_[c].byte == byte) return c;
  return 0;
}

void TokenTrie::add(std::string_view content, int32_t id) {
  uint32_t node = 0;
  for (const char c : content) {
    const auto byte = static_cast<unsigned char>(c);
    uint32_t next = node == 0 ? first_[byte] : child_of(node, byte);
    if (next == 0) {
      next = static_cast<uint32_t>(nodes_.size());
      Node fresh;
      fresh.byte = byte;
      if (node == 0) {
        first_[byte] = next;
      } else {
        fresh.sibling = nodes_[node].child;
        nodes_[node].child = next;
      }
      nodes_.push_back(fresh);
    }
    node = next;
  }
  if (node != 0) nodes_[node].id = id;
}

bool TokenTrie::find(std::string_view text, size_t from, Match& match) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    uint32_t node = first_[static_cast<unsigned char>(text[begin])];
    if (node == 0) continue;
    bool found = false;
    for (size_t at = begin + 1;; ++at) {
      if (nodes_[node].id >= 0) {
        match = {begin, at, nodes_[node].id};
        found = true;
      }
      if (at >= text.size()) break;
      node = child_of(node, static_cast<unsigned char>(text[at]));
      if (node == 0) break;
    }
    if (found) return true;
  }
  return false;
}

}  // namespace fathom::text
