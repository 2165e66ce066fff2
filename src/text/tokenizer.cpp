#include "text/tokenizer.h"

#include <atomic>
#include <cstring>
#include <unordered_map>

#include "base/error.h"
#include "base/file.h"
#include "base/utf8.h"
#include "text/added_tokens.h"
#include "text/split_pattern.h"
#include "text/tokenizer_file.h"

namespace fathom::text {
namespace {

uint64_t hash_piece(std::string_view piece) {
  uint64_t h = piece.size() * 0x9E3779B97F4A7C15u;
  while (piece.size() >= 8) {
    uint64_t word;
    std::memcpy(&word, piece.data(), 8);
    h = (h ^ word) * 0x9E3779B97F4A7C15u;
    h ^= h >> 32;
    piece.remove_prefix(8);
  }
  uint64_t rest = 0;
  std::memcpy(&rest, piece.data(), piece.size());
  h = (h ^ rest) * 0x9E3779B97F4A7C15u;
  return h ^ h >> 29;
}

/// Pieces seen earlier in the same call, each with the place of its ids in the output: words repeat. It owns no text
/// and no ids, so a hit costs one comparison and one copy.
class PieceCache {
 public:
  explicit PieceCache(size_t text_bytes) {
    if (text_bytes >= 1024) slots_.resize(kSlots);  // for a short text the table would cost more than it saves
  }
  static constexpr size_t kMaxPiece = 64;

  bool copy_ids(std::string_view piece, uint64_t hash, std::vector<int32_t>& ids) const {
    if (slots_.empty()) return false;
    const Slot& s = slots_[hash % kSlots];
    if (s.text.size() != piece.size() || std::memcmp(s.text.data(), piece.data(), piece.size()) != 0) return false;
    const size_t at = ids.size();
    ids.resize(at + s.count);
    for (size_t i = 0; i < s.count; ++i) ids[at + i] = ids[s.first + i];
    return true;
  }
  void remember(std::string_view piece, uint64_t hash, size_t first, size_t count) {
    if (!slots_.empty()) slots_[hash % kSlots] = {piece, first, count};
  }

 private:
  static constexpr size_t kSlots = 8192;
  struct Slot {
    std::string_view text;
    size_t first = 0, count = 0;
  };
  std::vector<Slot> slots_;
};

}  // namespace

struct Tokenizer::Impl {
  std::vector<std::string> tokens;
  std::vector<uint8_t> flags;  // by id
  Bpe bpe;
  std::vector<SplitPattern> splits;
  TokenTrie raw, normalized;  // added tokens searched first, and then in what is left
  std::unordered_map<std::string, int32_t> added_ids;
  bool whole_pieces_first = false;

  // Pieces that are one token, by open addressing. Whether the merges really lead to that token is found out once for
  // each token and noted; threads may find out the same thing twice, which does no harm.
  enum Whole : uint8_t { unknown = 0, yes = 1, no = 2 };
  std::vector<int32_t> whole_slots;
  std::unique_ptr<std::atomic<uint8_t>[]> whole;

  static constexpr uint8_t kSpecial = 1, kAdded = 2;

  struct Encoding {
    std::vector<int32_t>& ids;
    MatchScratch scratch;
    PieceCache cache;
  };

  void index_tokens();
  int32_t token_of(std::string_view piece, uint64_t hash) const;
  void encode_part(std::string_view part, size_t split, Encoding& e) const;
  void encode_piece(std::string_view piece, Encoding& e) const;
  template <typename Rest>
  void cut_added(const TokenTrie& trie, std::string_view text, std::vector<int32_t>& ids, const Rest& rest) const;
};

void Tokenizer::Impl::index_tokens() {
  size_t size = 2;
  while (size < tokens.size() * 2) size *= 2;
  whole_slots.assign(size, -1);
  whole = std::make_unique<std::atomic<uint8_t>[]>(tokens.size());
  for (size_t id = 0; id < tokens.size(); ++id) {
    whole[id] = unknown;
    if (tokens[id].empty() || (flags[id] & kAdded)) continue;
    size_t at = hash_piece(tokens[id]) & (size - 1);
    while (whole_slots[at] >= 0) at = (at + 1) & (size - 1);
    whole_slots[at] = static_cast<int32_t>(id);
  }
}

int32_t Tokenizer::Impl::token_of(std::string_view piece, uint64_t hash) const {
  const size_t mask = whole_slots.size() - 1;
  for (size_t at = hash & mask; whole_slots[at] >= 0; at = (at + 1) & mask)
    if (tokens[static_cast<size_t>(whole_slots[at])] == piece) return whole_slots[at];
  return -1;
}

void Tokenizer::Impl::encode_piece(std::string_view piece, Encoding& e) const {
  const uint64_t hash = hash_piece(piece);
  const int32_t id = token_of(piece, hash);
  uint8_t known = no;
  if (id >= 0)
    known = whole_pieces_first ? uint8_t{yes} : whole[static_cast<size_t>(id)].load(std::memory_order_relaxed);
  if (known == yes) {
    e.ids.push_back(id);
    return;
  }
  const bool small = piece.size() <= PieceCache::kMaxPiece;
  if (small && e.cache.copy_ids(piece, hash, e.ids)) return;
  const size_t first = e.ids.size();
  bpe.encode(piece, e.ids);
  const size_t count = e.ids.size() - first;
  if (known == unknown)
    whole[static_cast<size_t>(id)].store(count == 1 && e.ids[first] == id ? yes : no, std::memory_order_relaxed);
  if (small) e.cache.remember(piece, hash, first, count);
}

void Tokenizer::Impl::encode_part(std::string_view part, size_t split, Encoding& e) const {
  if (part.empty()) return;
  if (split == splits.size()) {
    encode_piece(part, e);
    return;
  }
  // Isolated: matches and what lies between them are pieces, and each piece is cut by the next pattern alone.
  size_t done = 0, begin = 0, end = 0;
  for (size_t from = 0; from <= part.size() && splits[split].find(part, from, e.scratch, begin, end);) {
    if (end == begin) {  // an empty match cuts nothing: look on behind the next character
      from = begin < part.size() ? begin + decode_utf8(part, begin).length : begin + 1;
      continue;
    }
    encode_part(part.substr(done, begin - done), split + 1, e);
    encode_part(part.substr(begin, end - begin), split + 1, e);
    done = from = end;
  }
  encode_part(part.substr(done), split + 1, e);
}

template <typename Rest>
void Tokenizer::Impl::cut_added(const TokenTrie& trie, std::string_view text, std::vector<int32_t>& ids,
                                const Rest& rest) const {
  size_t done = 0;
  for (TokenTrie::Match m; !trie.empty() && trie.find(text, done, m); done = m.end) {
    rest(text.substr(done, m.begin - done));
    ids.push_back(m.id);
  }
  rest(text.substr(done));
}

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
  return from_json(MappedFile(path).text(), path.string());
}

Tokenizer Tokenizer::from_json(std::string_view json, std::string_view name) {
  TokenizerFile file = read_tokenizer_file(json, name);
  auto impl = std::make_unique<Impl>();
  impl->bpe = Bpe(file.byte_ids, file.merges);
  for (const std::string& pattern : file.patterns) {
    try {
      impl->splits.emplace_back(pattern);
    } catch (const Error& e) {
      fail("{}: pre_tokenizer: {}", printable(name, 300), e.what());
    }
  }
  impl->flags.resize(file.tokens.size());
  for (const AddedToken& token : file.added) {
    (token.normalized ? impl->normalized : impl->raw).add(token.content, token.id);
    impl->added_ids[token.content] = token.id;
    impl->flags[static_cast<size_t>(token.id)] =
        static_cast<uint8_t>(Impl::kAdded | (token.special ? Impl::kSpecial : 0));
  }
  impl->tokens = std::move(file.tokens);
  impl->whole_pieces_first = file.whole_pieces_first;
  impl->index_tokens();
  return Tokenizer(std::move(impl));
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

int32_t Tokenizer::vocab_size() const {
  return static_cast<int32_t>(impl_->tokens.size());
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, AddedTokens added) const {
  std::vector<int32_t> ids;
  encode(text, added, ids);
  return ids;
}

void Tokenizer::encode(std::string_view text, AddedTokens added, std::vector<int32_t>& ids) const {
  std::string repaired;
  if (!is_valid_utf8(text)) text = repaired = utf8_repaired(text);
  Impl::Encoding e{ids, MatchScratch(), PieceCache(text.size())};
  const auto plain = [&](std::string_view part) { impl_->encode_part(part, 0, e); };
  if (added == AddedTokens::as_text) return plain(text);
  impl_->cut_added(impl_->raw, text, ids,
                   [&](std::string_view rest) { impl_->cut_added(impl_->normalized, rest, ids, plain); });
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string out;
  for (const int32_t id : ids) {
    const std::string_view piece = bytes(id);
    if (!(skip_special && is_special(id))) out += piece;
  }
  return is_valid_utf8(out) ? out : utf8_repaired(out);
}

bool Tokenizer::has(int64_t id) const {
  return id >= 0 && id < vocab_size() && !impl_->tokens[static_cast<size_t>(id)].empty();
}

std::string_view Tokenizer::bytes(int64_t id) const {
  if (!has(id)) fail("token id {} has no token in a vocabulary of {}", id, vocab_size());
  return impl_->tokens[static_cast<size_t>(id)];
}

bool Tokenizer::is_special(int64_t id) const {
  return has(id) && (impl_->flags[static_cast<size_t>(id)] & Impl::kSpecial);
}

bool Tokenizer::is_added(int64_t id) const {
  return has(id) && (impl_->flags[static_cast<size_t>(id)] & Impl::kAdded);
}

std::optional<int32_t> Tokenizer::added_id(std::string_view content) const {
  const auto it = impl_->added_ids.find(std::string(content));
  if (it == impl_->added_ids.end()) return std::nullopt;
  return it->second;
}

}  // namespace fathom::text
