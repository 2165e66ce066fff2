#include "text/split_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"
#include "text/unicode_supplement.h"

namespace fathom::text {
namespace {

// Unicode White_Space. PCRE2's own \s adds U+180E, which Unicode took out in 6.3.
constexpr std::string_view kSpace =
    "\\x{9}-\\x{D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}";

/// ASCII members of a category, named first so that English text is matched by a bitmap.
std::string_view ascii_of(char category) {
  switch (category) {
    case 'L':
      return "A-Za-z";
    case 'N':
      return "0-9";
    case 'P':
      return "!-#%-*,-/:;?@\\[-\\]_{}";
    case 'S':
      return "$+<->^`|~";
    default:
      return "";
  }
}

/// What stands between the brackets of a class for \p{category}.
std::string class_of(char category) {
  std::string out(ascii_of(category));
  out += fmt::format("\\p{{{}}}", category);
  for (const UnicodeSupplement& s : kUnicodeSupplement)
    if (s.category == category) out += fmt::format("\\x{{{:X}}}-\\x{{{:X}}}", s.first, s.last);
  return out;
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  std::string run() {
    while (at_ < in_.size()) {
      if (in_class_) {
        class_item();
      } else {
        item();
      }
    }
    if (in_class_) fail("regular expression without the ']' of a class: {}", printable(in_));
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    fail("regular expression uses {}, which is not supported: {}", printable(what), printable(in_));
  }
  bool next_is(std::string_view s) const { return in_.substr(at_, s.size()) == s; }
  void copy(size_t n) {
    out_ += in_.substr(at_, n);
    at_ += n;
  }

  void item() {
    switch (in_[at_]) {
      case '\\':
        escape();
        break;
      case '[':
        in_class_ = true;
        copy(next_is("[^") ? 2 : 1);
        if (next_is("]") || next_is("[:")) refuse("an empty or named class");
        break;
      case '(':
        group();
        break;
      case '{':
        repetition();
        break;
      case '^':
      case '$':
        refuse(in_.substr(at_, 1));
      default:
        copy(1);  // a literal (of any bytes), '.', '|', ')', '*', '+', '?'
    }
  }

  void group() {
    if (!next_is("(?")) {
      copy(1);
      return;
    }
    for (const std::string_view known : {"(?:", "(?=", "(?!", "(?<=", "(?<!"})
      if (next_is(known)) {
        copy(known.size());
        return;
      }
    refuse(in_.substr(at_, 4));
  }

  void repetition() {
    size_t end = at_ + 1;
    while (end < in_.size() && (std::isdigit(static_cast<unsigned char>(in_[end])) || in_[end] == ',')) ++end;
    const std::string_view bounds = in_.substr(at_ + 1, end - at_ - 1);
    if (end >= in_.size() || in_[end] != '}' || bounds.empty() || bounds[0] == ',' ||
        std::count(bounds.begin(), bounds.end(), ',') > 1)
      refuse("'{' that is not {n}, {n,} or {n,m}");
    if (end + 1 < in_.size() && in_[end + 1] == '+') refuse("'+' behind {n,m}");
    copy(end + 1 - at_);
  }

  void class_item() {
    if (next_is("]")) {
      in_class_ = false;
      copy(1);
    } else if (next_is("[")) {
      refuse("'[' inside a class");
    } else if (next_is("&&")) {
      refuse("'&&' inside a class");
    } else if (next_is("\\")) {
      escape();
    } else {
      copy(1);
    }
  }

  void escape() {
    if (at_ + 1 >= in_.size()) refuse("a backslash at the end");
    const char c = in_[at_ + 1];
    if (c == 'p' || c == 'P') {
      property(c == 'P');
    } else if (c == 's' || c == 'S') {
      at_ += 2;
      put_class(kSpace, c == 'S', "\\S inside a class");
    } else if (c == 'u') {
      const std::string_view hex = in_.substr(at_ + 2, 4);
      if (hex.size() < 4 || hex.find_first_not_of("0123456789abcdefABCDEF") != hex.npos) refuse(in_.substr(at_, 6));
      out_ += fmt::format("\\x{{{}}}", hex);
      at_ += 6;
    } else if (c == 'r' || c == 'n' || c == 't' || c == 'f' ||
               (c > ' ' && c < 0x7F && std::ispunct(static_cast<unsigned char>(c)))) {
      copy(2);
    } else {
      refuse(in_.substr(at_, 2));
    }
  }

  void property(bool negated) {
    const std::string_view rest = in_.substr(at_ + 2);
    constexpr std::string_view kMajor = "LMNPSZ";
    if (rest.size() < 3 || rest[0] != '{' || rest[2] != '}' || kMajor.find(rest[1]) == kMajor.npos)
      refuse(in_.substr(at_, std::min<size_t>(in_.size() - at_, in_.find('}', at_) + 1 - at_)));
    at_ += 5;
    put_class(class_of(rest[1]), negated, "\\P inside a class");
  }

  void put_class(std::string_view members, bool negated, std::string_view what) {
    if (in_class_) {
      if (negated) refuse(what);
      out_ += members;
    } else {
      out_ += fmt::format("[{}{}]", negated ? "^" : "", members);
    }
  }

  std::string_view in_;
  size_t at_ = 0;
  bool in_class_ = false;
  std::string out_;
};

std::string pcre2_message(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

PCRE2_SPTR units(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

}  // namespace

std::string translate_pattern(std::string_view pattern) {
  if (!is_valid_utf8(pattern)) fail("regular expression is not UTF-8: {}", printable(pattern));
  return Translator(pattern).run();
}

struct MatchScratch::Impl {
  // One pair of offsets is enough: only the whole match is asked for.
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = nullptr;
  ~Impl() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
};

MatchScratch::MatchScratch() : impl_(std::make_unique<Impl>()) {
  if (!impl_->data || !impl_->context) throw std::bad_alloc();
  pcre2_set_match_limit(impl_->context, UINT32_MAX);  // inputs are long by right; the patterns are not nested
}
MatchScratch::~MatchScratch() = default;

struct SplitPattern::Impl {
  pcre2_code* code = nullptr;
  bool jit = false;
  ~Impl() { pcre2_code_free(code); }
};

SplitPattern::SplitPattern(std::string_view pattern) : impl_(std::make_unique<Impl>()) {
  const std::string translated = translate_pattern(pattern);
  int error = 0;
  size_t offset = 0;
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  impl_->code = pcre2_compile(units(translated), translated.size(), PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C,
                              &error, &offset, context.get());
  if (!impl_->code) fail("regular expression does not compile ({}): {}", pcre2_message(error), printable(pattern));
  impl_->jit = pcre2_jit_compile(impl_->code, PCRE2_JIT_COMPLETE) == 0;  // where there is no JIT, the interpreter runs
}
SplitPattern::~SplitPattern() = default;
SplitPattern::SplitPattern(SplitPattern&&) noexcept = default;
SplitPattern& SplitPattern::operator=(SplitPattern&&) noexcept = default;

bool SplitPattern::find(std::string_view text, size_t from, MatchScratch& scratch, size_t& begin, size_t& end) const {
  MatchScratch::Impl& s = *scratch.impl_;
  const auto match = [&] {
    return impl_->jit
               ? pcre2_jit_match(impl_->code, units(text), text.size(), from, PCRE2_NO_UTF_CHECK, s.data, s.context)
               : pcre2_match(impl_->code, units(text), text.size(), from, PCRE2_NO_UTF_CHECK, s.data, s.context);
  };
  int result = match();
  if (result == PCRE2_ERROR_JIT_STACKLIMIT && !s.stack) {
    s.stack = pcre2_jit_stack_create(64 << 10, size_t{256} << 20, nullptr);
    if (!s.stack) throw std::bad_alloc();
    pcre2_jit_stack_assign(s.context, nullptr, s.stack);
    result = match();
  }
  if (result == PCRE2_ERROR_NOMATCH) return false;
  if (result < 0) fail("pre-tokenizer pattern failed on {} bytes of text: {}", text.size(), pcre2_message(result));
  const size_t* offsets = pcre2_get_ovector_pointer(s.data);
  begin = offsets[0];
  end = offsets[1];
  return true;
}

}  // namespace fathom::text
