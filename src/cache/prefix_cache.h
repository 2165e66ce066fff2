// The prefix cache: what sequences have computed stays until the room is needed, and a later sequence that begins with
// the same tokens starts from there.
//
// A tree over blocks of 128 tokens, one root for each salt; a node's key is its block's tokens themselves, so a hit is
// never false. A node holds the pages that have its block's rows: entries and index keys in an entry page (which two
// neighbours share), window rows of backbone and draft in two window pages. Compressor state is not stored for blocks:
// behind a block it consists of the projections of four tokens, which are fed again (their rows are there and are not
// written twice). Where a sequence has ended, anywhere in a block, a *tail* holds the rest: the tokens beyond the last
// block, the pages of its last rows and a snapshot of the compressor rings; going on from a tail feeds nothing again.
//
// What is in the tree costs nothing that anybody waits for: reserve() gives up the least recently used blocks and tails
// when pages are lacking. Window rows are seven times the bytes of entries and only those before a point of resumption
// are of use, so they are given up on their own, those of blocks where nobody has ended or resumed first.
//
// Not for several threads. All tokens given must be final: none that may be rolled back.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/cache.h"

namespace fathom {

class PrefixCache {
 public:
  static constexpr int kBlock = 128;  // tokens
  /// Tokens before the window whose rows a running sequence should not give up: with them it can be resumed where its
  /// last whole block ends.
  static constexpr int kKeepWindow = kBlock + Cache::kRing4;

  /// `cache` outlives the object.
  explicit PrefixCache(Cache& cache);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  /// What a sequence of these tokens would start from.
  struct Hit {
    int64_t length = 0;  // tokens that need not be fed
    int64_t rows = 0;    // tokens whose rows are there
    PageCount pages;     // that it would share
    PageCount cached;    // of these: no sequence has them so far
  };
  /// At most `limit` tokens are taken as not to be fed; tokens.size() - 1 leaves the last one, for its logits.
  Hit find(std::string_view salt, std::span<const int32_t> tokens, int64_t limit) const;

  /// A sequence that starts from the best hit, or from nothing: Cache::length() tells. Throws Error when all sequences
  /// are in use.
  SequenceId open(std::string_view salt, std::span<const int32_t> tokens, int64_t limit);

  /// Makes room in the cache for `tokens` more of the sequence, evicting as needed. False, and nothing changed, when
  /// the sequences themselves use too many pages.
  bool reserve(SequenceId id, int64_t tokens);

  /// Adds the complete entry pages of a sequence that goes on; `tokens` are at least the Cache::rows() it has.
  void keep(SequenceId id, std::string_view salt, std::span<const int32_t> tokens);
  /// The same for its complete blocks, from where others will likely go on: the end of a prompt. Costs the sequence a
  /// copy of its last page when half of that is complete.
  void keep_end(SequenceId id, std::string_view salt, std::span<const int32_t> tokens);
  /// Adds all that the sequence has, a tail too, and releases it.
  void close(SequenceId id, std::string_view salt, std::span<const int32_t> tokens);

  /// Removes what begins with these tokens as far as possible: all blocks along them that nothing else goes on from.
  void forget(std::string_view salt, std::span<const int32_t> tokens);
  void clear();

  struct Stats {
    int64_t opened = 0, hits = 0;               // sequences; those that started from something
    int64_t opened_tokens = 0, hit_tokens = 0;  // tokens of them; those that were not to be fed
    int64_t evicted_blocks = 0, evicted_tails = 0, evicted_windows = 0;
    int64_t blocks = 0, tails = 0;  // now
  };
  Stats stats() const;
  /// Recounts all holds and indexes; throws std::logic_error when the books do not balance.
  void check() const;

 private:
  using Block = std::array<int32_t, kBlock>;
  struct Node;
  struct Tail;
  /// A way down the tree, and where on it a sequence could start.
  struct Match {
    std::vector<Node*> path;       // nodes of whole blocks, from the first block on
    const Node* node = nullptr;    // resume behind this one (null: nothing to resume from; the root: a tail of it)
    const Tail* tail = nullptr;    // and from this tail, null: from the block
    int64_t length = 0, rows = 0;  // as in Hit
  };
  struct ByUse {
    bool operator()(const Node* a, const Node* b) const;
    bool operator()(const Tail* a, const Tail* b) const;
  };
  struct ByWindowUse {
    bool operator()(const Node* a, const Node* b) const;
  };

  Match match(std::string_view salt, std::span<const int32_t> tokens, int64_t limit) const;
  bool match_tail(Match& m, const Node& node, std::span<const int32_t> rest, int64_t limit) const;
  bool match_block(Match& m, size_t depth, int64_t limit) const;
  Resume resume_from(const Match& m) const;
  void touch(const Match& m);

  Node& insert(SequenceId id, std::string_view salt, std::span<const int32_t> tokens, int64_t blocks);
  void fill(Node& node, SequenceId id, int64_t block);
  void add_tail(Node& node, SequenceId id, std::span<const int32_t> rest);
  void mark(Node* node);

  bool make_room(const PageCount& pages);
  bool evict_oldest(bool in_use_too);
  bool evict_window(bool in_use_too);
  void drop_windows(Node& node);
  void remove_leaf(Node& node);
  void remove_tail(Tail& tail);
  void after_loss(Node& node);
  void remove_empty_roots();
  void set_used(Node& node, int64_t now);

  Cache& cache_;
  std::map<std::string, std::unique_ptr<Node>, std::less<>> roots_;
  std::set<Node*, ByUse> leaves_;          // nodes without children and tails, longest unused first
  std::set<Node*, ByWindowUse> windowed_;  // nodes with window pages
  std::set<Tail*, ByUse> tails_;
  std::set<Node*> empty_roots_;  // to be removed, unless they are filled by then
  int64_t clock_ = 0, serial_ = 0;
  Stats stats_;
};

}  // namespace fathom
