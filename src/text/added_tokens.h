// Added tokens: fixed strings that stand for one id and are cut out of the text before anything else.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fathom::text {

/// A set of strings, searched leftmost first and longest at each place.
class TokenTrie {
 public:
  TokenTrie();
  /// Adds a non-empty string. Adding it again replaces its id.
  void add(std::string_view content, int32_t id);

  struct Match {
    size_t begin, end;
    int32_t id;
  };
  /// The leftmost-longest match at or after `from`; false when there is none. Time: text times longest string at worst,
  /// one table look-up a byte where no string can begin.
  bool find(std::string_view text, size_t from, Match& match) const;

  bool empty() const { return nodes_.size() == 1; }

 private:
  struct Node {
    int32_t id = -1;       // of the string that ends here
    uint32_t child = 0;    // first child, 0: none
    uint32_t sibling = 0;  // next child of the same parent, 0: none
    unsigned char byte = 0;
  };
  uint32_t child_of(uint32_t node, unsigned char byte) const;

  std::vector<Node> nodes_;
  std::array<uint32_t, 256> first_{};  // children of the root by byte
};

}  // namespace fathom::text
