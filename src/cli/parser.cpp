#include "cli/parser.h"

#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/interrupt.h"

extern char** environ;

namespace fathom::cli {

struct Parser::Impl {
  CLI::App* app;
};

namespace {

/// `text` as a number in [low, high], or a CLI11 error that names the option and what it takes.
template <typename Number>
Number number_in(const std::string& option, const std::string& text, Number low, Number high) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  bool good = error == std::errc{} && end == text.data() + text.size() && value >= low && value <= high;
  if constexpr (std::is_floating_point_v<Number>) good = good && std::isfinite(value);
  if (!good)
    throw CLI::ValidationError(option,
                               fmt::format("{} is not {} from {} to {}", printable(text, 40),
                                           std::is_integral_v<Number> ? "a whole number" : "a number", low, high));
  return value;
}

/// CLI11's own conversion would take 010 for 8, cut numbers that are too long, and let NaN pass a range.
template <typename Number>
void add_number(CLI::App& app, const std::string& names, Number& value, const std::string& help, Number low,
                Number high, const char* type) {
  const std::string option = names.substr(names.rfind(',') + 1);
  app.add_option_function<std::string>(
         names, [&value, option, low, high](const std::string& text) { value = number_in(option, text, low, high); },
         help)
      ->type_name(type)
      ->default_str(fmt::format("{}", value));
}

}  // namespace

void Parser::flag(const std::string& names, bool& value, const std::string& help) {
  impl_->app->add_flag(names, value, help);
}
void Parser::option(const std::string& names, std::string& value, const std::string& help) {
  impl_->app->add_option(names, value, help)->type_name("TEXT");
}
void Parser::option(const std::string& names, int64_t& value, const std::string& help, int64_t low, int64_t high) {
  add_number(*impl_->app, names, value, help, low, high, "N");
}
void Parser::option(const std::string& names, double& value, const std::string& help, double low, double high) {
  add_number(*impl_->app, names, value, help, low, high, "X");
}
void Parser::option(const std::string& names, std::vector<std::string>& values, const std::string& help) {
  impl_->app->add_option(names, values, help)->type_name("TEXT")->allow_extra_args(false);
}
void Parser::choice(const std::string& names, std::string& value, const std::vector<std::string>& allowed,
                    const std::string& help) {
  impl_->app->add_option(names, value, help)->check(CLI::IsMember(allowed))->capture_default_str();
}
void Parser::positional(const std::string& name, std::string& value, const std::string& help, bool required) {
  impl_->app->add_option(name, value, help)->required(required)->type_name("");
}
void Parser::positional(const std::string& name, std::vector<std::string>& values, const std::string& help,
                        bool required) {
  impl_->app->add_option(name, values, help)->required(required)->type_name("");
}
bool Parser::given(const std::string& name) const {
  return impl_->app->count(name) > 0;
}
void Parser::footer(const std::string& text) {
  impl_->app->footer(text);
}

namespace {

/// fathom reads no variable whose name starts with FATHOM_: one that is set is a mistake and refused.
void refuse_unknown_variables() {
  for (char** at = environ; *at; ++at) {
    const std::string_view entry = *at;
    if (entry.starts_with("FATHOM_"))
      fail("environment variable {} is not one that fathom knows; unset it",
           printable(entry.substr(0, entry.find('='))));
  }
}

/// Standard descriptors that the caller closed must not be taken by a file that is opened later: text meant for the
/// terminal would end up in it. They are opened in the wrong direction, so that using them is still an error.
void occupy_standard_descriptors() {
  for (int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(descriptor, F_GETFD) < 0) ::open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

/// What was printed must have arrived. Nobody may be reading any more (`| head`): that is an error as well.
void flush_output() {
  errno = 0;
  if (std::fflush(stdout) != 0 || std::ferror(stdout))
    fail("standard output: cannot write{}{}", errno ? ": " : "", errno ? std::strerror(errno) : "");
}

/// Runs `body` and turns what it throws into one line and an exit status.
int guarded(const std::string& command, const std::function<int()>& body) {
  try {
    const int status = body();
    flush_output();
    return status;
  } catch (const UsageError& e) {
    std::fprintf(stderr, "fathom: %s (see fathom %s --help)\n", e.what(), command.c_str());
    return 2;
  } catch (const Interrupted& e) {
    std::fprintf(stderr, "fathom: %s\n", e.what());
    return 130;
  } catch (const Error& e) {
    std::fprintf(stderr, "fathom: %s\n", e.what());
  } catch (const std::filesystem::filesystem_error& e) {
    std::fprintf(stderr, "fathom: %s: %s\n", printable(e.path1().string(), 400).c_str(), e.code().message().c_str());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr,
                 "fathom: out of memory: free some, raise the limit (ulimit -v), or lower --context and --chunk\n");
  } catch (const std::exception& e) {
    std::fprintf(stderr, "fathom: internal error, please report it: %s\n", printable(e.what(), 400).c_str());
  }
  return 1;
}

}  // namespace

int run_command_line(int argc, char** argv, const std::vector<Command>& commands) {
  occupy_standard_descriptors();
  catch_lost_pages();
  CLI::App app{"fathom: an inference engine and an instrument for DeepSeek-V4-Flash", "fathom"};
  app.set_version_flag("--version", std::string("fathom " FATHOM_VERSION));
  app.require_subcommand(1);
  app.set_help_all_flag("--help-all", "Help of every command");

  std::vector<std::unique_ptr<Parser::Impl>> impls;
  std::vector<std::unique_ptr<Parser>> parsers;
  std::function<int()> chosen;
  for (const Command& command : commands) {
    CLI::App* sub = app.add_subcommand(command.name, command.help);
    impls.push_back(std::make_unique<Parser::Impl>(Parser::Impl{sub}));
    parsers.push_back(std::make_unique<Parser>(*impls.back()));
    auto run = command.declare(*parsers.back());
    sub->callback([run, &chosen] { chosen = run; });
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return guarded("", [&] { return app.exit(e); });
    std::fprintf(stderr, "fathom: %s (see fathom %s--help)\n", printable(e.what(), 300).c_str(),
                 app.get_subcommands().empty() ? "" : (app.get_subcommands().front()->get_name() + " ").c_str());
    return 2;
  }
  return guarded(app.get_subcommands().front()->get_name(), [&] {
    refuse_unknown_variables();
    return chosen();
  });
}

}  // namespace fathom::cli
