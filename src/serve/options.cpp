#include "serve/options.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "engine/speculate_option.h"
#include "serve/fields.h"
#include "text/json.h"

namespace fathom::serve {

const std::vector<OptionEntry>& option_table() {
  using O = ServeOptions;
  static const std::vector<OptionEntry> table = {
      {"host", &O::host, 0, 0, {}, "Address to listen on; anything but loopback lets other machines in"},
      {"port", &O::port, 0, 65535, {}, "Port; 0: any free one"},
      {"api-key", &O::api_keys, 0, 0, {}, "Key that clients must send; may be given several times", true},
      {"api-key-file", &O::api_key_file, 0, 0, {}, "File with such keys, one a line"},
      {"cors-origin", &O::cors_origins, 0, 0, {}, "Web origin whose pages may use the server; \"*\": all"},
      {"model-name",
       &O::names,
       0,
       0,
       {},
       "Name the model answers to; may be given several times (default: its folder)"},
      {"context",
       &O::context,
       0,
       1 << 24,
       {},
       "Most tokens of one request, prompt and output; 0: what the model allows"},
      {"cache-tokens", &O::cache_tokens, 1, 1 << 30, {}, "Tokens in the cache, of all running requests together"},
      {"max-running", &O::max_running, 1, 65536, {}, "Outputs generated at once"},
      {"max-waiting", &O::max_waiting, 0, 1 << 20, {}, "Outputs that may wait for their turn; more are refused (429)"},
      {"chunk", &O::chunk, 1, 65536, {}, "Prompt tokens processed in one step"},
      {"chunk-beside-decode",
       &O::chunk_beside_decode,
       0,
       65536,
       {},
       "The same while outputs are being generated, which wait for it; 0: as --chunk"},
      {"speculate", &O::speculate, 0, 0, {}, kSpeculateHelp},
      {"max-connections", &O::max_connections, 1, 1 << 20, {}, "Open connections; more are refused (503)"},
      {"max-body-mib", &O::max_body_mib, 1, 1024, {}, "Largest body of a request"},
      {"default-max-tokens",
       &O::default_max_tokens,
       0,
       1 << 24,
       {},
       "max_tokens of requests that do not say; 0: what the context leaves"},
      {"request-timeout", &O::request_timeout, 0, 86400, {}, "Seconds after which a request is ended; 0: never"},
      {"write-timeout",
       &O::write_timeout,
       0.1,
       86400,
       {},
       "Seconds after which a client that reads nothing is cut off"},
      {"drain-timeout",
       &O::drain_timeout,
       0,
       86400,
       {},
       "Seconds that running requests get when the server is told to end"},
      {"health-timeout", &O::health_timeout, 0.1, 3600, {}, "Seconds in which /health must see a token decoded"},
      {"thinking", &O::thinking, 0, 0, {}, "Chats think unless the request says otherwise"},
      {"no-prefix-cache", &O::no_prefix_cache, 0, 0, {}, "Every prompt is computed from its first token"},
      {"compat",
       &O::compat,
       0,
       0,
       {"none", "official"},
       "official: as DeepSeek's own API, temperature, top_p and penalties of a request have no effect in thinking "
       "mode"},
      {"device", &O::device, 0, 0, {"auto", "cpu", "cuda"}, "Where to run; auto: on the GPU if there is one"},
      {"ops", &O::ops, 0, 0, {"cpu", "ref"}, "Operations: fast, or the slow exact references"},
      {"fast", &O::fast, 0, 0, {}, "On a GPU: kernels whose last bits depend on the batch, where they are faster"},
      {"tensor-parallel", &O::tensor_parallel, 1, 64, {}, "Divide the model over so many GPUs of this machine"},
      {"threads", &O::threads, 0, 4096, {}, "Threads of the engine; 0: all processors"},
      {"profile-dir", &O::profile_dir, 0, 0, {}, "Folder for traces of /start_profile"},
      {"log-format", &O::log_format, 0, 0, {"text", "json"}, "Lines of the log"},
      {"log-level",
       &O::log_level,
       0,
       0,
       {"debug", "info", "warning", "error"},
       "Least important lines that are logged"},
  };
  return table;
}

namespace {

void set_field(const OptionEntry& entry, Fields& fields, ServeOptions& o) {
  if (const auto* p = std::get_if<std::string ServeOptions::*>(&entry.field)) {
    if (const auto v = fields.text(entry.name)) {
      if (!entry.allowed.empty() && std::find(entry.allowed.begin(), entry.allowed.end(), *v) == entry.allowed.end())
        fields.refuse(entry.name,
                      fmt::format("is {}, it must be one of {}", printable(*v), fmt::join(entry.allowed, ", ")));
      o.** p = *v;
    }
  } else if (const auto* n = std::get_if<int64_t ServeOptions::*>(&entry.field)) {
    if (const auto v = fields.integer(entry.name, static_cast<int64_t>(entry.low), static_cast<int64_t>(entry.high)))
      o.** n = *v;
  } else if (const auto* d = std::get_if<double ServeOptions::*>(&entry.field)) {
    if (const auto v = fields.number(entry.name, entry.low, entry.high)) o.** d = *v;
  } else if (const auto* b = std::get_if<bool ServeOptions::*>(&entry.field)) {
    if (const auto v = fields.boolean(entry.name)) o.** b = *v;
  } else if (const auto* list = std::get_if<std::vector<std::string> ServeOptions::*>(&entry.field)) {
    if (const auto v = fields.texts(entry.name, 1000); !v.empty()) o.** list = v;
  }
}

std::string value_text(const OptionEntry& entry, const ServeOptions& o) {
  if (const auto* p = std::get_if<std::string ServeOptions::*>(&entry.field)) return text::json_quoted(o.**p);
  if (const auto* n = std::get_if<int64_t ServeOptions::*>(&entry.field)) return fmt::format("{}", o.**n);
  if (const auto* d = std::get_if<double ServeOptions::*>(&entry.field)) return fmt::format("{}", o.**d);
  if (const auto* b = std::get_if<bool ServeOptions::*>(&entry.field)) return o.**b ? "true" : "false";
  std::vector<std::string> quoted;
  for (const auto& text : o.*std::get<std::vector<std::string> ServeOptions::*>(entry.field))
    quoted.push_back(text::json_quoted(text));
  return fmt::format("[{}]", fmt::join(quoted, ", "));
}

}  // namespace

void read_config_file(const std::string& path, const std::function<bool(const std::string&)>& given,
                      ServeOptions& options) {
  const std::string name = printable(path, 400), json = read_file(path, size_t{1} << 20);
  const text::JsonReading reading = text::read_json(json);
  if (!reading.value) fail("{}: not valid JSON: {}", name, reading.error);
  if (!reading.value->is(text::JsonValue::Kind::object) || reading.lone_surrogate)
    fail("{}: the file must be one JSON object of settings, like that of --print-config", name);
  try {
    Fields fields(*reading.value);
    ServeOptions unused;  // what the command line has set is checked all the same
    for (const OptionEntry& entry : option_table()) set_field(entry, fields, given(entry.name) ? unused : options);
    const auto unknown = fields.unknown();
    if (!unknown.empty()) fail("{} is no setting of the server (see --print-config)", fmt::join(unknown, ", "));
  } catch (const Error& e) {
    fail("{}: {}", name, e.what());
  }
}

void read_api_keys(ServeOptions& options) {
  for (const auto& key : options.api_keys)
    if (key.empty()) fail("an API key is empty");
  if (options.api_key_file.empty()) return;
  const std::string text = read_file(options.api_key_file, size_t{1} << 20);
  size_t found = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (!line.empty()) options.api_keys.push_back(line), ++found;
    at = end + 1;
  }
  if (found == 0) fail("{}: no API key in it (one a line)", printable(options.api_key_file, 400));
}

std::string print_config(const ServeOptions& options) {
  std::string out = "{\n";
  for (const OptionEntry& entry : option_table()) {
    if (entry.secret) continue;
    out += fmt::format("{}  \"{}\": {}", out.size() > 2 ? ",\n" : "", entry.name, value_text(entry, options));
  }
  return out + "\n}\n";
}

void check_options(const ServeOptions& o) {
  if (o.chunk_beside_decode > o.chunk)
    fail("chunk-beside-decode {} is larger than chunk {}", o.chunk_beside_decode, o.chunk);
  if (o.context > o.cache_tokens)
    fail("context {} does not fit into a cache of {} tokens: raise cache-tokens", o.context, o.cache_tokens);
}

}  // namespace fathom::serve
