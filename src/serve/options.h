// Settings of the server: one table names them for the command line, for --config files and for --print-config.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

namespace fathom::serve {

struct ServeOptions {
  // Who may ask, and where.
  std::string host = "127.0.0.1";
  int64_t port = 8000;
  std::vector<std::string> api_keys;
  std::string api_key_file;
  std::vector<std::string> cors_origins;
  std::vector<std::string> names;  // of the model; empty: the name of its folder
  // Limits.
  int64_t context = 0;  // 0: what model and cache allow
  int64_t cache_tokens = 65536;
  int64_t max_running = 32, max_waiting = 256;
  std::string speculate = "off";
  int64_t chunk = 256, chunk_beside_decode = 64;
  int64_t max_connections = 4096, max_body_mib = 32;
  int64_t default_max_tokens = 0;
  double request_timeout = 0, write_timeout = 30, drain_timeout = 30, health_timeout = 10;  // seconds; 0: none
  // The rest.
  bool thinking = false, no_prefix_cache = false, fast = false;
  std::string compat = "none";
  std::string device = "auto", ops = "cpu";
  int64_t threads = 0, tensor_parallel = 1;
  std::string profile_dir = ".";
  std::string log_format = "text", log_level = "info";
};

struct OptionEntry {
  using Field = std::variant<std::string ServeOptions::*, int64_t ServeOptions::*, double ServeOptions::*,
                             bool ServeOptions::*, std::vector<std::string> ServeOptions::*>;
  const char* name;  // "max-running"
  Field field;
  double low = 0, high = 0;          // numbers
  std::vector<std::string> allowed;  // texts: one of these; empty: any
  const char* help = "";
  bool secret = false;  // not shown by --print-config
};

const std::vector<OptionEntry>& option_table();

/// Sets from a JSON file whatever `given` does not say the command line has set. Throws Error naming file and field for
/// unknown names, wrong types and values out of range.
void read_config_file(const std::string& path, const std::function<bool(const std::string& name)>& given,
                      ServeOptions& options);

/// Adds the lines of api_key_file to api_keys. Throws Error when it cannot be read or has none.
void read_api_keys(ServeOptions& options);

/// All settings as a JSON file that read_config_file takes (without secrets).
std::string print_config(const ServeOptions& options);

/// Settings that do not fit together. Throws Error.
void check_options(const ServeOptions& options);

}  // namespace fathom::serve
