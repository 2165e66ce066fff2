#include "plan/gpu.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "plan/embedded.h"

namespace fathom::plan {
namespace {

using Json = nlohmann::ordered_json;

std::string squeezed(std::string_view text) {
  std::string out;
  for (const char c : text)
    if (c != ' ' && c != '-' && c != '_') out += c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return out;
}

/// One entry of the table; knows where it is for messages.
class Entry {
 public:
  Entry(const Json& object, std::string where, std::vector<const char*> fields)
      : object_(object), where_(std::move(where)) {
    if (!object_.is_object()) fail("{}: an object was expected", where_);
    for (const auto& [key, value] : object_.items())
      if (std::find(fields.begin(), fields.end(), key) == fields.end())
        fail("{}: unknown field {}", where_, printable(key));
  }

  std::string text(const char* field) const {
    const Json& value = get(field);
    if (!value.is_string() || value.get_ref<const std::string&>().empty()) fail("{}: {} must be a text", where_, field);
    return value.get<std::string>();
  }

  double number(const char* field, double low, double high) const {
    const Json& value = get(field);
    const double n = value.is_number() ? value.get<double>() : NAN;
    if (!(n >= low && n <= high)) fail("{}: {} must be a number from {:g} to {:g}", where_, field, low, high);
    return n;
  }

  const Json& get(const char* field) const {
    const auto at = object_.find(field);
    if (at == object_.end()) fail("{}: {} is missing", where_, field);
    return *at;
  }
  /// Another name for it in messages.
  void call(std::string where) { where_ = std::move(where); }
  bool has(const char* field) const { return object_.contains(field); }

 private:
  const Json& object_;
  std::string where_;
};

Gpu read_gpu(const Json& object, const std::string& place) {
  Entry named(object, place,
              {"name", "aliases", "compute_capability", "sms", "memory", "bandwidth", "bf16", "fp8", "fp4", "link"});
  Gpu g;
  g.name = named.text("name");
  const std::string where = place + " (" + printable(g.name) + ")";
  named.call(where);
  if (named.has("aliases")) {
    if (!named.get("aliases").is_array()) fail("{}: aliases must be a list of texts", where);
    for (const Json& alias : named.get("aliases")) {
      if (!alias.is_string()) fail("{}: aliases must be a list of texts", where);
      g.aliases.push_back(alias.get<std::string>());
    }
  }
  g.compute_capability = static_cast<int>(named.number("compute_capability", 0, 999));
  g.sm_count = static_cast<int>(named.number("sms", 1, 10000));
  g.memory = named.number("memory", 256, 1e8) * (1 << 20);
  g.bandwidth = named.number("bandwidth", 1, 1e6) * 1e9;
  g.bf16 = named.number("bf16", 1e-6, 1e6) * 1e12;
  g.fp8 = named.number("fp8", 0, 1e6) * 1e12;
  g.fp4 = named.number("fp4", 0, 1e6) * 1e12;
  const Entry link(named.get("link"), where + ": link", {"name", "gbs", "allreduce_us", "measured"});
  g.link.name = link.text("name");
  g.link.bandwidth = link.number("gbs", 0.1, 1e5) * 1e9;
  g.link.all_reduce_latency = link.number("allreduce_us", 0.1, 1e5) * 1e-6;
  if (link.has("measured")) {
    if (!link.get("measured").is_boolean()) fail("{}: link: measured must be true or false", where);
    g.link.measured = link.get("measured").get<bool>();
  }
  return g;
}

}  // namespace

GpuTable::GpuTable() {
  add(embedded::plan_gpus(), "the GPU table");
}

void GpuTable::add_file(const std::filesystem::path& file) {
  add(read_file(file, size_t{1} << 20), printable(file.string(), 400));
}

void GpuTable::add(std::string_view text, const std::string& where) {
  const Json file = Json::parse(text, nullptr, false);
  if (file.is_discarded()) fail("{}: not valid JSON", where);
  const Entry top(file, where, {"comment", "gpus"});
  const Json& list = top.get("gpus");
  if (!list.is_array()) fail("{}: gpus must be a list", where);
  for (size_t i = 0; i < list.size(); ++i) {
    Gpu gpu = read_gpu(list[i], where + ": gpus[" + std::to_string(i) + "]");
    const std::string name = squeezed(gpu.name);
    const auto known = std::find_if(gpus_.begin(), gpus_.end(), [&](const Gpu& g) { return squeezed(g.name) == name; });
    if (known != gpus_.end())
      *known = std::move(gpu);
    else
      gpus_.push_back(std::move(gpu));
  }
}

const Gpu& GpuTable::find(std::string_view name) const {
  const std::string wanted = squeezed(name);
  std::string names;
  for (const Gpu& g : gpus_) {
    if (squeezed(g.name) == wanted) return g;
    for (const std::string& alias : g.aliases)
      if (squeezed(alias) == wanted) return g;
    names += (names.empty() ? "" : ", ") + g.name;
  }
  fail("{}: not a GPU in the table ({}); add yours with --gpus FILE", printable(std::string(name)), names);
}

const Gpu* GpuTable::find_in(std::string_view device_name) const {
  const std::string text = squeezed(device_name);
  const Gpu* best = nullptr;
  size_t longest = 0;
  const auto try_name = [&](const Gpu& g, const std::string& name) {
    const std::string part = squeezed(name);
    const size_t at = text.find(part);
    if (at == text.npos || part.size() <= longest) return;
    const size_t end = at + part.size();
    const auto is_word = [](char c) { return (c >= '0' && c <= '9') || c == 's'; };
    // "A10" is no A100 and "L40" no L40S; "H100SXM5" is an H100.
    if (end < text.size() && is_word(text[end]) && text.compare(end, 3, "sxm") != 0) return;
    best = &g, longest = part.size();
  };
  for (const Gpu& g : gpus_) {
    try_name(g, g.name);
    for (const std::string& alias : g.aliases) try_name(g, alias);
  }
  return best;
}

}  // namespace fathom::plan
