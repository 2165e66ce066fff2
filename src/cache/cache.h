// The cache: everything the model keeps between tokens, in pages, for many sequences.
//
// Three kinds of state (spec section 3):
//   window KV     one row a token and layer; pages of 64 tokens. A page number means the same rows in every layer.
//   entries       ratio-4 and ratio-128 KV and the ratio-4 index keys; pages of 256 tokens (64 and 2 rows).
//   compressor    per sequence and layer a ring of the last 16 (ratio 4) or 256 (ratio 128) tokens' projections.
//
// Pages are counted by reference: fork() shares them, and a page is copied only when one of its owners is about to
// write to it. in_use + free = total holds after every call (check() proves it).
//
// A sequence can be rolled back to any earlier length. Where the rings still hold what the compressor needs, nothing
// has to be computed again; otherwise rollback() says from which token on the caller must feed the tokens once more (at
// most about one block of 128), and rows that are already there are not written twice.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cache/page_pool.h"
#include "model/step.h"
#include "model/weights.h"

namespace fathom {

struct CacheBudget {
  int64_t tokens = 0;  // tokens of all sequences together, rounded up to pages
  int32_t sequences = 1;
  int64_t keep_window = -1;  // window rows kept beyond the window, for rollback and forks; -1: all
  int draft_stages = 0;      // window rings of a draft, kept like layers
};

enum class SequenceId : int32_t {};

class Cache {
 public:
  static constexpr int kWindowPage = 64, kEntryPage = 256;  // tokens
  static constexpr int kRing4 = 16, kRing128 = 256;         // tokens

  Cache(const ModelConfig& config, const CacheBudget& budget);

  /// Bytes that a cache of this budget takes, before making it.
  static int64_t bytes_needed(const ModelConfig& config, const CacheBudget& budget);

  bool can_create() const { return !free_states_.empty(); }
  /// An empty sequence. Throws Error when all are in use.
  SequenceId create();
  /// A copy that shares all pages. Throws Error when all sequences are in use.
  SequenceId fork(SequenceId id);
  void release(SequenceId id);
  int64_t length(SequenceId id) const { return at(id).length; }

  /// Makes room for `tokens` more: takes pages, copies shared ones that will be written. False, and nothing changed,
  /// when pages are lacking.
  bool reserve(SequenceId id, int64_t tokens);
  /// The model has processed `tokens` reserved tokens.
  void commit(SequenceId id, int64_t tokens);
  /// Shortens the sequence to `length` tokens. Returns from where on the caller must feed tokens again to have exactly
  /// `length`: `length` itself when the state is there, less otherwise.
  int64_t rollback(SequenceId id, int64_t length);

  /// What layer `i` reads and writes; drafts follow the backbone's layers.
  std::span<const LayerCache> layers() const { return layers_; }

  // For building a step's batch.
  int32_t state_slot(SequenceId id) const { return at(id).state; }
  std::span<const int32_t> entry_pages(SequenceId id) const { return at(id).entry_pages; }
  /// Row of the token's window KV.
  int32_t window_row(SequenceId id, int64_t position) const;
  /// Row for writing it; -1 when the row is already there.
  int32_t window_write_row(SequenceId id, int64_t position) const;
  int32_t entry_row(SequenceId id, int ratio, int64_t entry) const;
  /// Row for writing an entry; -1 when it is already there.
  int32_t entry_write_row(SequenceId id, int ratio, int64_t entry) const;

  struct Usage {
    int32_t window_total, window_free, entry_total, entry_free, sequences_total, sequences_free;
    int64_t bytes;  // of all pools
  };
  Usage usage() const;
  /// Recounts every reference; throws std::logic_error when the books do not balance.
  void check() const;

 private:
  struct Sequence {
    bool alive = false;
    int64_t length = 0;
    int64_t written = 0;     // tokens whose rows and entries are complete; > length only while tokens are fed again
    int64_t reached = 0;     // greatest length since state_from
    int64_t state_from = 0;  // the rings hold nothing older than this token
    int32_t state = -1;
    std::vector<int32_t> window_pages;  // by position / 64, -1: dropped
    std::vector<int32_t> entry_pages;   // by position / 256
  };

  Sequence& at(SequenceId id);
  const Sequence& at(SequenceId id) const;
  void make_layers();
  void copy_window_page(int32_t from, int32_t to);
  void copy_entry_page(int32_t from, int32_t to);
  void copy_state(int32_t from, int32_t to);
  void drop_old_windows(Sequence& s);
  bool ring_holds(const Sequence& s, int64_t length) const;

  const ModelConfig& config_;
  CacheBudget budget_;
  PagePool windows_, entries_;
  std::vector<int32_t> free_states_;
  std::vector<Sequence> sequences_;
  std::unique_ptr<WeightMemory> memory_;
  std::vector<LayerCache> layers_;
};

}  // namespace fathom
