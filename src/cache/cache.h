// The cache: everything the model keeps between tokens, in pages, for many sequences.
//
// Three kinds of state (spec section 3):
//   window KV     one row a token and layer; pages of 64 tokens. A page number means the same rows in every layer.
//   entries       ratio-4 and ratio-128 KV and the ratio-4 index keys; pages of 256 tokens (64 and 2 rows).
//   compressor    per sequence and layer a ring of the last 16 (ratio 4) or 256 (ratio 128) tokens' projections.
//
// Pages are counted by reference: fork() shares them, and a page is copied only when one of its owners is about to
// write to it. used + cached + free = total holds after every call (check() proves it); cached pages belong to no
// sequence, only to the prefix cache (prefix_cache.h).
//
// A sequence can be rolled back to any earlier length. Where the rings still hold what the compressor needs, nothing
// has to be computed again; otherwise rollback() says from which token on the caller must feed the tokens once more (at
// most about one block of 128), and rows that are already there are not written twice.
#pragma once

#include <algorithm>
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
  int64_t keep_window = -1;   // window rows kept beyond the window, for rollback and forks; -1: all
  int draft_stages = 0;       // window rings of a draft, kept like layers
  int32_t snapshots = 0;      // compressor states beyond those of the sequences, for the prefix cache
  int64_t window_tokens = 0;  // tokens whose window rows have room, of all sequences together; 0: `tokens`
};

enum class SequenceId : int32_t {};

/// Pages of both kinds.
struct PageCount {
  int64_t window = 0, entry = 0;
};

/// Which tokens the rings of a compressor state hold: the last ones before `reached`, none older than `from`.
struct RingRange {
  int64_t from = 0, reached = 0;
};

/// State of the first tokens of a sequence, to start another one from.
struct Resume {
  int64_t rows = 0;                   // tokens whose rows and entries are in the pages
  int64_t length = 0;                 // tokens that need not be fed again, at most `rows`
  std::vector<int32_t> window_pages;  // by position / 64, -1: not there
  std::vector<int32_t> entry_pages;   // by position / 256
  int32_t state = -1;                 // slot to copy the rings from; -1: they hold nothing before `length`
  RingRange rings;                    // what they hold
};

class Cache {
 public:
  static constexpr int kWindowPage = 64, kEntryPage = 256;  // tokens
  static constexpr int kRing4 = 16, kRing128 = 256;         // tokens

  /// In the memory of `device`, whose stream the model works on.
  Cache(const ModelConfig& config, const CacheBudget& budget,
        std::shared_ptr<ops::ComputeDevice> device = ops::host_device());
  /// The same in the memory of each of the ranks of a model: twins, which hold the same bits as long as the ranks write
  /// the same. Rank 0's first.
  Cache(const ModelConfig& config, const CacheBudget& budget,
        const std::vector<std::shared_ptr<ops::ComputeDevice>>& devices);

  /// Bytes that a cache of this budget takes, before making it.
  static int64_t bytes_needed(const ModelConfig& config, const CacheBudget& budget);

  bool can_create() const { return !free_ids_.empty(); }
  /// An empty sequence. Throws Error when all are in use.
  SequenceId create();
  /// A copy that shares all pages. Throws Error when all sequences are in use.
  SequenceId fork(SequenceId id);
  /// A sequence that goes on from there, sharing the pages. Throws Error when all sequences are in use.
  SequenceId create_from(const Resume& resume);
  void release(SequenceId id);
  int64_t length(SequenceId id) const { return at(id).length; }
  /// Tokens whose rows and entries are there; more than length() while tokens are fed again.
  int64_t rows(SequenceId id) const { return at(id).written; }

  /// Makes room for `tokens` more: takes pages, copies shared ones that will be written. False, and nothing changed,
  /// when pages are lacking.
  bool reserve(SequenceId id, int64_t tokens);
  /// Pages that reserve() would take.
  PageCount pages_to_reserve(SequenceId id, int64_t tokens) const;
  /// Makes an empty sequence one of `tokens` tokens with whatever its pages and rings hold, and the last window's rows.
  /// False, and nothing changed, when pages are lacking. For benchmarks (cache/fill.h).
  bool assume(SequenceId id, int64_t tokens);
  /// The model has processed `tokens` reserved tokens.
  void commit(SequenceId id, int64_t tokens);
  /// Shortens the sequence to `length` tokens. Returns from where on the caller must feed tokens again to have exactly
  /// `length`: `length` itself when the state is there, less otherwise.
  int64_t rollback(SequenceId id, int64_t length);
  /// Gives up window rows that are needed no more and lie more than `keep` tokens before the window.
  void trim_window(SequenceId id, int64_t keep) { drop_old_windows(at(id), keep); }

  /// What layer `i` reads and writes; drafts follow the backbone's layers.
  std::span<const LayerCache> layers(int rank = 0) const { return twins_[static_cast<size_t>(rank)].layers; }
  int ranks() const { return static_cast<int>(twins_.size()); }
  ops::ComputeDevice& device(int rank) const { return twins_[static_cast<size_t>(rank)].memory->device(); }

  // For building a step's batch.
  int32_t state_slot(SequenceId id) const { return at(id).state; }
  std::span<const int32_t> entry_pages(SequenceId id) const { return at(id).entry_pages; }
  std::span<const int32_t> window_pages(SequenceId id) const { return at(id).window_pages; }  // -1: dropped
  /// Row of the token's window KV.
  int32_t window_row(SequenceId id, int64_t position) const;
  /// Row for writing it; -1 when the row is already there.
  int32_t window_write_row(SequenceId id, int64_t position) const;
  int32_t entry_row(SequenceId id, int ratio, int64_t entry) const;
  /// Row for writing an entry; -1 when it is already there.
  int32_t entry_write_row(SequenceId id, int ratio, int64_t entry) const;

  /// Whether the drafts' rings hold something at a window row: they are not written in every step.
  bool draft_row(int32_t row) const {
    return static_cast<size_t>(row) < draft_rows_.size() && draft_rows_[static_cast<size_t>(row)] != 0;
  }
  /// The step that wrote these rows (-1: none) has written those of the drafts too, or has not.
  void set_draft_rows(View<const int32_t, 1> rows, bool there);

  struct Usage {
    int32_t window_total, window_free, entry_total, entry_free, sequences_total, sequences_free;
    int64_t bytes;                        // of all pools
    int32_t window_cached, entry_cached;  // of the pages that are not free: only the prefix cache has them
    int32_t snapshots_total, snapshots_used;
  };
  Usage usage() const;
  /// Recounts every reference of sequences; throws std::logic_error when the books do not balance. The prefix cache
  /// recounts its own.
  void check() const;

  // For the prefix cache.
  const ModelConfig& config() const { return config_; }
  PagePool& windows() { return windows_; }
  const PagePool& windows() const { return windows_; }
  PagePool& entries() { return entries_; }
  const PagePool& entries() const { return entries_; }
  RingRange rings(SequenceId id) const { return {at(id).state_from, at(id).reached}; }
  /// Rings of this range let a sequence go on at `length` without feeding anything again.
  bool rings_hold(const RingRange& rings, int64_t length) const;
  /// Where to feed from on, when the rings hold nothing, to go on at `length`.
  static int64_t feed_from(int64_t length) {
    return std::min(std::max<int64_t>(0, length / 4 * 4 - 4), length / 128 * 128);
  }
  bool can_snapshot() const { return snapshots_used_ < budget_.snapshots; }
  /// release(), but the compressor state stays. Returns its slot, for Resume::state and free_snapshot(). The caller has
  /// checked can_snapshot().
  int32_t release_to_snapshot(SequenceId id);
  void free_snapshot(int32_t state);

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
  std::vector<LayerCache> make_layers(WeightMemory& memory) const;
  void copy_window_page(int32_t from, int32_t to);
  void copy_entry_page(int32_t from, int32_t to);
  void copy_state(int32_t from, int32_t to);
  void drop_old_windows(Sequence& s, int64_t keep);
  void release_pages(Sequence& s);
  struct Lacking {
    PageCount fresh;
    bool copy_window = false, copy_entry = false;
  };
  Lacking lacking(const Sequence& s, int64_t tokens) const;

  const ModelConfig& config_;
  CacheBudget budget_;
  PagePool windows_, entries_;
  std::vector<int32_t> free_ids_, free_states_;
  std::vector<uint8_t> draft_rows_;  // by window row; empty before the first was set
  int32_t snapshots_used_ = 0;
  std::vector<Sequence> sequences_;
  /// The pools on one rank.
  struct Twin {
    std::unique_ptr<WeightMemory> memory;
    std::vector<LayerCache> layers;
  };
  std::vector<Twin> twins_;
};

}  // namespace fathom
