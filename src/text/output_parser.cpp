#include "text/output_parser.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"
#include "text/json.h"
#include "text/output_tags.h"
#include "text/protocol.h"

namespace fathom::text {
namespace {

using namespace protocol;

constexpr std::string_view kBlockOpen = "<｜DSML｜tool_calls";
constexpr std::string_view kInvokeOpen = "<｜DSML｜invoke";
constexpr std::string_view kParameterOpen = "<｜DSML｜parameter";
constexpr std::string_view kAnyClosing = "</｜DSML｜";
constexpr size_t kLongestTag = 4096;
constexpr size_t kSlice = 4096;
constexpr size_t kDeepestIndent = 256;  // of a block, with the line ends before it
constexpr size_t kLongestGap = 64;      // white space inside a closing tag

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

size_t skip_space(std::string_view s, size_t at) {
  while (at < s.size() && is_space(s[at])) ++at;
  return at;
}

/// Where the white space that belongs to a block at `end` begins: its indentation and up to two line ends before it.
/// A carriage return at the end of what is known may yet become a line end.
size_t block_space(std::string_view s, size_t end) {
  size_t at = end;
  if (end == s.size() && at > 0 && s[at - 1] == '\r') return block_space(s.substr(0, at - 1), at - 1);
  while (at > 0 && (s[at - 1] == ' ' || s[at - 1] == '\t')) --at;
  for (int lines = 0; lines < 2 && at > 0 && s[at - 1] == '\n'; ++lines) {
    --at;
    if (at > 0 && s[at - 1] == '\r') --at;
  }
  return at;
}

}  // namespace

OutputParser::OutputParser(const ParserOptions& options) : options_(options) {}

std::vector<OutputEvent> OutputParser::push(std::string_view text) {
  bytes_ += text;
  const size_t whole = utf8_complete_prefix(bytes_);
  const std::string ready = utf8_repaired(std::string_view(bytes_).substr(0, whole));
  bytes_.erase(0, whole);
  // In slices, so that taking from the front of the buffer stays cheap however much comes at once.
  for (size_t at = 0; at < ready.size();) {
    const size_t n = at + kSlice < ready.size() ? utf8_complete_prefix(std::string_view(ready).substr(at, kSlice))
                                                : ready.size() - at;
    buffer_ += std::string_view(ready).substr(at, n);
    at += n;
    while (step(false)) {
    }
  }
  return std::exchange(events_, {});
}

std::vector<OutputEvent> OutputParser::finish() {
  // Half a character is half a tag where only tags may stand, and text elsewhere.
  const bool in_markup = state_ == State::block || state_ == State::invoke;
  (in_markup ? tail_ : buffer_) += utf8_repaired(bytes_);
  bytes_.clear();
  while (step(true)) {
  }
  if (state_ == State::ended && !raw_.empty())
    emit(OutputKind::malformed, "text behind the end token", -1, std::exchange(raw_, {}));
  return std::exchange(events_, {});
}

/// One move of the machine; false when it needs more text. `final`: there is no more.
bool OutputParser::step(bool final) {
  switch (state_) {
    case State::start:
      return at_start(final);
    case State::reasoning:
      return in_reasoning(final);
    case State::content:
      return in_content(final);
    case State::block:
      return in_block(final);
    case State::invoke:
      return in_invoke(final);
    case State::value:
      return in_value(final);
    case State::after_block:
      return after_block(final);
    case State::ended:
      raw_ += std::exchange(buffer_, {});
      return false;
  }
  return false;
}

/// The prompt has written <think> or </think>; a model that writes it again means no text by it. A model that begins
/// to think although it was not asked to is still understood.
bool OutputParser::at_start(bool final) {
  if (buffer_.empty() && !final) return false;
  const Match think = match_at(0, kThink), think_end = match_at(0, kThinkEnd);
  if (!final && (think == Match::partial || think_end == Match::partial)) return false;
  state_ = options_.thinking || think == Match::yes ? State::reasoning : State::content;
  if (think == Match::yes) {
    take(kThink.size());
  } else if (think_end == Match::yes && !options_.thinking) {
    take(kThinkEnd.size());
  }
  raw_.clear();
  return true;
}

bool OutputParser::in_reasoning(bool final) {
  for (size_t at = buffer_.find('<'); at != buffer_.npos; at = buffer_.find('<', at + 1)) {
    const Match close = match_at(at, kThinkEnd), end = match_at(at, kEnd);
    if (close == Match::no && end == Match::no) continue;
    emit(OutputKind::reasoning, std::string_view(buffer_).substr(0, at));
    take(at);
    if (close == Match::yes) {
      take(kThinkEnd.size());
      state_ = State::content;
    } else if (end == Match::yes) {
      take(kEnd.size());
      emit(OutputKind::cut, "the output ended inside the reasoning");
      state_ = State::ended;
    } else {
      if (!final) return false;
      emit(OutputKind::reasoning, buffer_);
      buffer_.clear();
      continue;
    }
    raw_.clear();
    return true;
  }
  emit(OutputKind::reasoning, buffer_);
  buffer_.clear();
  raw_.clear();
  if (final) {
    emit(OutputKind::cut, "the output ended inside the reasoning");
    state_ = State::ended;
  }
  return false;
}

/// Gives out content up to what may be the end token or the beginning of a block, with the white space before it.
bool OutputParser::in_content(bool final) {
  for (size_t from = 0;;) {
    const size_t at = std::min(buffer_.find('<', from), buffer_.size());
    const size_t space = std::max(block_space(buffer_, at), at - std::min(at, kDeepestIndent));
    const bool at_line_start =
        (space == 0 && line_start_) || std::string_view(buffer_).substr(space, at - space).find('\n') != buffer_.npos;
    const Match end = at < buffer_.size() ? match_at(at, kEnd) : Match::partial;
    Match block = at < buffer_.size() ? match_at(at, kBlockOpen) : Match::partial;
    if (poisoned_ || !at_line_start) block = std::min(block, Match::no);
    if (end == Match::yes) {
      emit_content(std::string_view(buffer_).substr(0, at));
      take(at + kEnd.size());
      raw_.clear();
      state_ = State::ended;
      return true;
    }
    if (block == Match::yes) {
      size_t tag_end = at + kBlockOpen.size();
      while (tag_end < buffer_.size() && (buffer_[tag_end] == ' ' || buffer_[tag_end] == '\t')) ++tag_end;
      if (tag_end < buffer_.size() && buffer_[tag_end] == '>') return open_block(space, tag_end + 1);
      if (tag_end == buffer_.size() && final) {
        open_block(space, tag_end);
        return cut("a tag");
      }
      if (tag_end < buffer_.size()) block = Match::no;  // another tag that begins the same
    }
    if (at < buffer_.size() && end == Match::no && block == Match::no) {
      from = at + 1;
      continue;
    }
    // Everything before the white space is certain; the rest waits.
    const size_t certain = final ? buffer_.size() : space;
    emit_content(std::string_view(buffer_).substr(0, certain));
    buffer_.erase(0, certain);
    return false;
  }
}

bool OutputParser::open_block(size_t space, size_t tag_end) {
  emit_content(std::string_view(buffer_).substr(0, space));
  buffer_.erase(0, space);
  raw_.clear();
  take(tag_end - space);
  fenced_ = fence_.inside();
  block_calls_ = 0;
  gap_.clear();
  state_ = State::block;
  return true;
}

bool OutputParser::in_block(bool final) {
  take(skip_space(buffer_, 0));
  size_t end = 0;
  const Match invoke = match_at(0, kInvokeOpen), close = match_closing(0, "tool_calls", end), eos = match_at(0, kEnd);
  if (invoke == Match::yes) return read_tag(kInvokeOpen.size(), final);
  if (close == Match::yes) {
    if (block_calls_ == 0) return broken("a block of tool calls without a call");
    take(end);
    state_ = State::after_block;
    return true;
  }
  const bool partial = invoke == Match::partial || close == Match::partial || eos == Match::partial;
  if (eos == Match::yes) return cut_by_end("a block of tool calls");
  if (partial && final) return cut("a block of tool calls");
  return partial ? false : broken("a block of tool calls with something else in it");
}

bool OutputParser::in_invoke(bool final) {
  take(skip_space(buffer_, 0));
  size_t end = 0;
  const Match parameter = match_at(0, kParameterOpen), close = match_closing(0, "invoke", end), eos = match_at(0, kEnd);
  if (parameter == Match::yes) return read_tag(kParameterOpen.size(), final);
  if (close == Match::yes) {
    take(end);
    emit_call(OutputKind::call_arguments, "}");
    emit_call(OutputKind::call_end, std::exchange(note_, {}));
    state_ = State::block;
    return true;
  }
  const bool partial = parameter == Match::partial || close == Match::partial || eos == Match::partial;
  if (eos == Match::yes) return cut_by_end("a tool call");
  if (partial && final) return cut("a tool call");
  return partial ? false : broken("a tool call with something else than parameters in it");
}

/// Reads the attributes that begin at `head`, up to the first '>' behind a quote.
bool OutputParser::read_tag(size_t head, bool final) {
  if (head < buffer_.size() && !is_space(buffer_[head])) return broken("a tag without a name");
  for (size_t at = buffer_.find('>', head); at != buffer_.npos && at - head <= kLongestTag;
       at = buffer_.find('>', at + 1)) {
    size_t before = at;
    while (before > head && is_space(buffer_[before - 1])) --before;
    if (before == head || (buffer_[before - 1] != '"' && buffer_[before - 1] != '\'')) continue;
    const std::string attributes = buffer_.substr(head, before - head);
    take(at + 1);
    return state_ == State::block ? begin_call(attributes) : begin_parameter(attributes);
  }
  if (buffer_.size() - head > kLongestTag) return broken("a tag without an end");
  return final ? cut("a tag") : false;
}

bool OutputParser::begin_call(std::string_view attributes) {
  const std::string name = read_invoke_tag(attributes);
  if (name.empty()) return broken("a tool call whose name cannot be read");
  ++calls_, ++block_calls_;
  keys_.clear();
  emit_call(OutputKind::call_begin, name);
  emit_call(OutputKind::call_arguments, "{");
  state_ = State::invoke;
  return true;
}

bool OutputParser::begin_parameter(std::string_view attributes) {
  const auto tag = read_parameter_tag(attributes);
  if (!tag) return broken("a parameter whose attributes cannot be read");
  if (!keys_.insert(tag->name).second) return broken("a parameter that is given twice");
  string_value_ = tag->string;
  emit_call(OutputKind::call_arguments,
            fmt::format("{}{}: {}", keys_.size() > 1 ? ", " : "", json_quoted(tag->name), string_value_ ? "\"" : ""));
  value_.clear();
  state_ = State::value;
  return true;
}

/// A value ends at the first closing parameter tag; everything else in it is text.
bool OutputParser::in_value(bool final) {
  for (size_t at = buffer_.find('<'); at != buffer_.npos; at = buffer_.find('<', at + 1)) {
    size_t end = 0;
    const Match close = match_closing(at, "parameter", end);
    if (close == Match::no) continue;
    value_text(std::string_view(buffer_).substr(0, at));
    take(at);
    if (close == Match::yes) {
      take(end - at);
      end_value();
      state_ = State::invoke;
      return true;
    }
    return final ? cut("the value of a parameter") : false;
  }
  value_text(buffer_);
  take(buffer_.size());
  return final ? cut("the value of a parameter") : false;
}

void OutputParser::value_text(std::string_view text) {
  if (!string_value_) {
    value_ += text;
    return;
  }
  std::string escaped;
  append_json_escaped(escaped, text);
  if (!escaped.empty()) emit_call(OutputKind::call_arguments, escaped);
}

void OutputParser::end_value() {
  if (string_value_) {
    emit_call(OutputKind::call_arguments, "\"");
    return;
  }
  const bool json = is_strict_json(value_);
  if (!json) note_ = "a parameter with string=\"false\" is not valid JSON and was passed on as a string";
  emit_call(OutputKind::call_arguments, json ? value_ : json_quoted(value_));
}

/// The block is closed. What follows decides: a stray closing tag shows that a value held a block of its own and that
/// all was misread; text behind a block in a code fence shows that the block was an example.
bool OutputParser::after_block(bool final) {
  const size_t space = skip_space(buffer_, 0);
  gap_ += std::string_view(buffer_).substr(0, space);
  take(space);
  const Match eos = match_at(0, kEnd), closing = match_at(0, kAnyClosing), next = match_at(0, kBlockOpen);
  if (eos == Match::yes) {
    block_done();
    take(kEnd.size());
    raw_.clear();
    state_ = State::ended;
    return true;
  }
  if (closing == Match::yes) return broken("a closing tag behind a block of tool calls");
  const bool partial = eos == Match::partial || closing == Match::partial || next == Match::partial;
  if (partial && !final) return false;
  if (buffer_.empty()) {
    block_done();
    state_ = State::content;
    return false;
  }
  if (fenced_) return broken("");
  buffer_.insert(0, gap_);
  block_done();
  line_start_ = false;
  state_ = State::content;
  return true;
}

void OutputParser::block_done() {
  for (OutputEvent& event : std::exchange(waiting_, {})) events_.push_back(std::move(event));
  emit(OutputKind::calls_done, "");
  raw_.clear();
}

/// The block is no block: its text is content. An example in a code fence is not worth a mark.
bool OutputParser::broken(std::string_view what) {
  void_calls();
  poisoned_ = poisoned_ || (block_calls_ > 0 && !fenced_);
  state_ = State::content;
  if (!fenced_) emit(OutputKind::malformed, what);
  emit_content(std::exchange(raw_, {}));
  return true;
}

/// The output is over inside a block.
bool OutputParser::cut(std::string_view where) {
  void_calls();
  std::string markup = std::exchange(raw_, {}) + std::exchange(buffer_, {}) + std::exchange(tail_, {});
  if (markup.ends_with(kEnd)) markup.resize(markup.size() - kEnd.size());
  if (fenced_) {
    emit_content(markup);
  } else {
    emit(OutputKind::cut, fmt::format("the output ended inside {}", where), -1, std::move(markup));
  }
  state_ = State::ended;
  return true;
}

/// The end token stands at the front of the buffer, inside a block.
bool OutputParser::cut_by_end(std::string_view where) {
  std::string rest = buffer_.substr(kEnd.size());
  buffer_.clear();
  cut(where);
  buffer_ = std::move(rest);
  return true;
}

void OutputParser::void_calls() {
  waiting_.clear();
  note_.clear();
  if (options_.delivery == CallDelivery::whole || fenced_) calls_ -= block_calls_;  // nobody has heard of them
}

OutputParser::Match OutputParser::match_at(size_t at, std::string_view literal) const {
  const std::string_view here = std::string_view(buffer_).substr(at, literal.size());
  if (here == literal) return Match::yes;
  return literal.substr(0, here.size()) == here ? Match::partial : Match::no;
}

/// "<", white space, "/｜DSML｜name", white space, ">": the official parser allows the first white space, and models
/// write the second.
OutputParser::Match OutputParser::match_closing(size_t at, std::string_view name, size_t& end) const {
  if (at >= buffer_.size()) return Match::partial;
  if (buffer_[at] != '<') return Match::no;
  const auto skip_gap = [&](size_t from) { return std::min(skip_space(buffer_, from), from + kLongestGap); };
  at = skip_gap(at + 1);
  for (const std::string_view part : {std::string_view("/"), kDsml, name}) {
    const Match m = match_at(at, part);
    if (m != Match::yes) return m;
    at += part.size();
  }
  at = skip_gap(at);
  if (at >= buffer_.size()) return Match::partial;
  end = at + 1;
  return buffer_[at] == '>' ? Match::yes : Match::no;
}

void OutputParser::take(size_t n) {
  raw_ += std::string_view(buffer_).substr(0, n);
  buffer_.erase(0, n);
}

void OutputParser::emit(OutputKind kind, std::string_view text, int call, std::string raw) {
  const bool delta = kind == OutputKind::content || kind == OutputKind::reasoning || kind == OutputKind::call_arguments;
  if (delta && text.empty()) return;
  if (delta && !events_.empty() && events_.back().kind == kind && events_.back().call == call) {
    events_.back().text += text;
    return;
  }
  events_.push_back({kind, std::string(text), call, std::move(raw)});
}

void OutputParser::emit_content(std::string_view text) {
  if (text.empty()) return;
  fence_.push(text);
  line_start_ = text.back() == '\n';
  emit(OutputKind::content, text);
}

void OutputParser::emit_call(OutputKind kind, std::string_view text) {
  if (options_.delivery == CallDelivery::whole || fenced_) std::swap(events_, waiting_);
  emit(kind, text, calls_ - 1);
  if (options_.delivery == CallDelivery::whole || fenced_) std::swap(events_, waiting_);
}

void ParsedOutput::add(const OutputEvent& event) {
  switch (event.kind) {
    case OutputKind::reasoning:
      reasoning += event.text;
      break;
    case OutputKind::content:
      content += event.text;
      break;
    case OutputKind::call_begin:
      open_.push_back({event.text, "", ""});
      break;
    case OutputKind::call_arguments:
      open_.back().arguments += event.text;
      break;
    case OutputKind::call_end:
      open_.back().note = event.text;
      break;
    case OutputKind::calls_done:
      calls.insert(calls.end(), open_.begin(), open_.end());
      open_.clear();
      break;
    case OutputKind::malformed:
    case OutputKind::cut:
      open_.clear();
      errors.push_back(event.text);
      leftover += event.raw;
      cut = cut || event.kind == OutputKind::cut;
      break;
  }
}

ParsedOutput parse_output(std::string_view text, const ParserOptions& options) {
  ParsedOutput out;
  OutputParser parser(options);
  for (const OutputEvent& event : parser.push(text)) out.add(event);
  for (const OutputEvent& event : parser.finish()) out.add(event);
  return out;
}

}  // namespace fathom::text
