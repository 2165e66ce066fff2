#include "trace/chrome_event.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/error.h"

namespace fathom::trace {
namespace {

/// Equality with a literal; the length is a constant, so it compiles to a few compares.
template <size_t N>
bool is(std::string_view text, const char (&word)[N]) {
  return text.size() == N - 1 && std::memcmp(text.data(), word, N - 1) == 0;
}

/// The member of RawEvent that a key names, or null. Keys are told apart by length first: this runs for every member.
RawText* field_of(RawEvent& e, std::string_view key) {
  switch (key.size()) {
    case 2:
      if (is(key, "ph")) return &e.phase;
      if (is(key, "ts")) return &e.time;
      if (is(key, "id")) return &e.id;
      return nullptr;
    case 3:
      if (is(key, "cat")) return &e.category;
      if (is(key, "pid")) return &e.pid;
      if (is(key, "tid")) return &e.tid;
      if (is(key, "dur")) return &e.duration;
      return nullptr;
    case 4:
      return is(key, "name") ? &e.name : nullptr;
    default:
      return nullptr;
  }
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

EventClass classify_one(std::string_view category) {
  struct Entry {
    std::string_view text;
    EventClass meaning;
  };
  static constexpr Entry entries[] = {
      {"kernel", EventClass::kernel},
      {"gpu_memcpy", EventClass::memcpy},
      {"gpu_memset", EventClass::memset},
      {"Kernel", EventClass::kernel},  // Kineto 2021
      {"Memcpy", EventClass::memcpy},
      {"Memset", EventClass::memset},
      {"gpu_op", EventClass::kernel},
      {"cuda", EventClass::kernel},  // nsys2json
      {"cuda_runtime", EventClass::runtime},
      {"cuda_driver", EventClass::runtime},
      {"Runtime", EventClass::runtime},
      {"hip_runtime", EventClass::runtime},
      {"xpu_runtime", EventClass::runtime},
      {"xpu_driver", EventClass::runtime},
      {"user_annotation", EventClass::annotation},
      {"nvtx", EventClass::annotation},
      {"gpu_user_annotation", EventClass::gpu_annotation},
  };
  for (const Entry& entry : entries)
    if (entry.text == category) return entry.meaning;
  return EventClass::ignored;
}

uint32_t as_u32(const RawText& value) {
  int64_t n = 0;
  if (!value.present || !parse_integer(value.text, n) || n < 0) return 0;
  return static_cast<uint32_t>(std::min<int64_t>(n, std::numeric_limits<uint32_t>::max()));
}

float as_figure(const RawText& value) {
  double v = -1;
  return value.present && parse_real(value.text, v) ? static_cast<float>(v) : -1.0f;
}

void read_dimensions(std::string_view array, std::array<uint32_t, 3>& out) {
  size_t i = 0;
  for_each_element(array, [&](const RawText& value) {
    if (i < 3) out[i++] = as_u32(value);
  });
  for (; i > 0 && i < 3; ++i) out[i] = 1;
}

/// XLA writes launches and copies as text: "regs:32 static_shared:0 dynamic_shared:8192 grid:64,1,1 block:256,1,1
/// occ_pct:100", "kind_src:pinned kind_dst:device size:4096 dest:0 async:1".
void read_details(std::string_view text, LaunchShape& shape) {
  int64_t shared = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of(" \n"), text.size());
    const std::string_view item = text.substr(0, end);
    text.remove_prefix(std::min(text.size(), end + 1));
    const size_t colon = item.find(':');
    if (colon == std::string_view::npos) continue;
    const std::string_view key = item.substr(0, colon), value = item.substr(colon + 1);
    int64_t n = 0;
    if (key == "grid" || key == "block") {
      read_dimensions(fmt::format("[{}]", value), key == "grid" ? shape.grid : shape.block);
    } else if (!parse_integer(value, n) || n < 0) {
      continue;  // words, such as the kinds of memory
    } else if (key == "regs" || key == "registers_per_thread") {
      shape.registers = static_cast<uint32_t>(std::min<int64_t>(n, 1 << 16));
    } else if (key.starts_with("static_shared") || key.starts_with("dynamic_shared")) {
      shared += std::min<int64_t>(n, 1 << 30);
    } else if (key == "occ_pct") {
      shape.reported_occupancy = static_cast<int32_t>(std::min<int64_t>(n, 1000));
    } else if (key == "size" || key == "num_bytes") {
      shape.bytes = n;
    }
  }
  if (shared > 0) shape.shared_bytes = static_cast<uint32_t>(std::min<int64_t>(shared, 1 << 30));
}

void take_details(const RawText& value, LaunchShape& shape) {
  if (!value.present || value.text.size() > 4096) return;
  if (value.escaped)
    read_details(decode_text(value), shape);
  else
    read_details(value.text, shape);
}

/// One member of the arguments; keys are told apart by length first: this runs for every member.
void take_argument(std::string_view k, const RawText& value, RawArgs& out) {
  LaunchShape& shape = out.shape;
  switch (k.size()) {
    case 4:
      if (is(k, "grid")) read_dimensions(value.text, shape.grid);
      break;
    case 5:
      if (is(k, "block")) read_dimensions(value.text, shape.block);
      if (is(k, "bytes") && value.present) parse_integer(value.text, shape.bytes);
      break;
    case 6:
      if (is(k, "device") && value.present) out.device = value.text;
      break;
    case 10:
      if (is(k, "Group size")) shape.group_size = static_cast<int32_t>(std::min(as_u32(value), 1u << 30));
      break;
    case 11:
      if (is(k, "correlation") && value.present) parse_integer(value.text, out.correlation);
      break;
    case 12:
      if (is(k, "warps per SM")) shape.warps_per_sm = as_figure(value);
      if (is(k, "hlo_category")) out.operation = value;
      break;
    case 13:
      if (is(k, "shared memory")) shape.shared_bytes = as_u32(value);
      if (is(k, "blocks per SM")) shape.blocks_per_sm = as_figure(value);
      if (is(k, "In msg nelems") && value.present) parse_integer(value.text, shape.elements_in);
      break;
    case 14:
      if (is(k, "kernel_details") || is(k, "memcpy_details") || is(k, "Memset_details") || is(k, "memset_details"))
        take_details(value, shape);
      if (is(k, "correlation_id") && value.present) parse_integer(value.text, out.correlation);
      break;
    case 15:
      if (is(k, "Collective name")) out.collective = value;
      break;
    case 19:
      if (is(k, "Process Group Ranks")) {
        out.group = value;
        if (!value.present) out.group.text = value.text, out.group.present = true;
      }
      break;
    case 20:
      if (is(k, "registers per thread")) shape.registers = as_u32(value);
      break;
    case 25:
      if (is(k, "est. achieved occupancy %"))
        shape.reported_occupancy = value.present ? static_cast<int32_t>(std::min(as_u32(value), 1000u)) : -1;
      break;
    default:
      break;
  }
}

/// The object at s.at, member by member; s.at ends behind its brace. It accepts and refuses what JsonScanner::value()
/// does, at the same place with the same words: a report must not depend on how an event was read.
template <typename Member>
Scan scan_object(JsonScanner& s, Member&& member) {
  ++s.at;
  RawText key, value;
  for (;;) {
    if (const Scan r = s.space(); r != Scan::ok) return r;
    if (*s.at == '}') break;
    if (*s.at == ',') {
      ++s.at;
      continue;
    }
    if (*s.at == ']') return s.fail("a bracket closes what is not open");
    if (*s.at != '"') return s.fail("expected a key or '}'");
    if (const Scan r = s.key(key); r != Scan::ok) return r;
    if (const Scan r = s.space(); r != Scan::ok) return r;
    if (const Scan r = s.value(value); r != Scan::ok) return r;
    member(key, value);
    if (const Scan r = s.space(); r != Scan::ok) return r;
    if (*s.at != ',' && *s.at != '}' && *s.at != ']') return s.fail("expected ',' or the end of the object");
  }
  ++s.at;
  return Scan::ok;
}

/// The arguments at s.at, for an event of GPU work.
Scan scan_work_args(JsonScanner& s, RawEvent& event, RawArgs& args) {
  args = {};
  event.args_read = false;
  const char* begin = s.at;
  --s.depth_limit;  // the braces of the arguments are one level
  const Scan r =
      scan_object(s, [&](const RawText& key, const RawText& value) { take_argument(key.text, value, args); });
  ++s.depth_limit;
  if (r != Scan::ok) return r;
  event.args = {begin, static_cast<size_t>(s.at - begin)};
  event.args_read = true;
  return Scan::ok;
}

}  // namespace

Scan scan_event(JsonScanner& s, RawEvent& out, std::string_view work, RawArgs& args) {
  out = {};
  ++s.at;  // '{'
  RawText key, value;
  for (;;) {
    if (const Scan r = s.space(); r != Scan::ok) return r;
    if (*s.at == '}') break;
    if (*s.at != '"') return s.fail("expected a key or '}'");
    if (const Scan r = s.key(key); r != Scan::ok) return r;
    if (const Scan r = s.space(); r != Scan::ok) return r;
    out.empty = false;
    std::string decoded;
    std::string_view name = key.text;
    if (key.escaped) name = decoded = decode_text(key);
    if (is(name, "args") && *s.at == '{' && !work.empty() && out.category.text == work) {
      if (const Scan r = scan_work_args(s, out, args); r != Scan::ok) return r;
    } else {
      if (const Scan r = s.value(value); r != Scan::ok) return r;
      if (RawText* field = field_of(out, name)) {
        *field = value.present ? value : RawText{};
      } else if (is(name, "args")) {
        out.args = !value.present && value.text.starts_with('{') ? value.text : std::string_view{};
        out.args_read = false;
      }
    }
    if (const Scan r = s.space(); r != Scan::ok) return r;
    if (*s.at == ',') {
      ++s.at;
    } else if (*s.at != '}') {
      return s.fail("expected ',' or '}' in an event");
    }
  }
  ++s.at;
  return Scan::ok;
}

EventClass classify_category(std::string_view category) {
  if (!contains(category, ",")) return classify_one(category);
  while (!category.empty()) {
    const size_t comma = category.find(',');
    std::string_view one = category.substr(0, comma);
    while (!one.empty() && one.front() == ' ') one.remove_prefix(1);
    if (const EventClass c = classify_one(one); c != EventClass::ignored) return c;
    category.remove_prefix(comma == std::string_view::npos ? category.size() : comma + 1);
  }
  return EventClass::ignored;
}

HostKind classify_call(std::string_view name) {
  if (contains(name, "GraphLaunch")) return HostKind::graph_launch;
  if (contains(name, "Synchronize") || contains(name, "StreamWaitEvent")) return HostKind::synchronize;
  if (contains(name, "Launch")) return HostKind::launch;
  if (contains(name, "Memcpy") || contains(name, "Memset")) return HostKind::copy;
  return HostKind::other;
}

void scan_args(std::string_view args, RawArgs& out) {
  for_each_member(args, [&](const RawText& key, const RawText& value) { take_argument(key.text, value, out); });
}

}  // namespace fathom::trace
