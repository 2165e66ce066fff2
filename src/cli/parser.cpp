#include "cli/parser.h"

#include <CLI/CLI.hpp>
#include <cstdio>

#include "base/error.h"

extern char** environ;

namespace fathom::cli {

struct Parser::Impl {
  CLI::App* app;
};

void Parser::flag(const std::string& names, bool& value, const std::string& help) {
  impl_->app->add_flag(names, value, help);
}
void Parser::option(const std::string& names, std::string& value, const std::string& help) {
  impl_->app->add_option(names, value, help)->type_name("TEXT");
}
void Parser::option(const std::string& names, int64_t& value, const std::string& help, int64_t low, int64_t high) {
  impl_->app->add_option(names, value, help)->check(CLI::Range(low, high))->type_name("N")->capture_default_str();
}
void Parser::option(const std::string& names, double& value, const std::string& help, double low, double high) {
  impl_->app->add_option(names, value, help)->check(CLI::Range(low, high))->type_name("X")->capture_default_str();
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

/// Variables that fathom reads. Anything else that starts with FATHOM_ is a spelling mistake and refused.
constexpr std::string_view known_variables[] = {"FATHOM_LOG"};

void refuse_unknown_variables() {
  for (char** at = environ; *at; ++at) {
    const std::string_view entry = *at;
    if (!entry.starts_with("FATHOM_")) continue;
    const std::string_view name = entry.substr(0, entry.find('='));
    if (std::find(std::begin(known_variables), std::end(known_variables), name) == std::end(known_variables))
      fail("environment variable {} is not one that fathom knows (known: FATHOM_LOG); unset it", printable(name));
  }
}

}  // namespace

int run_command_line(int argc, char** argv, const std::vector<Command>& commands) {
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
    if (e.get_exit_code() == 0) return app.exit(e);
    std::fprintf(stderr, "fathom: %s (see fathom %s--help)\n", printable(e.what(), 300).c_str(),
                 app.get_subcommands().empty() ? "" : (app.get_subcommands().front()->get_name() + " ").c_str());
    return 2;
  }
  try {
    refuse_unknown_variables();
    return chosen();
  } catch (const Error& e) {
    std::fprintf(stderr, "fathom: %s\n", e.what());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "fathom: out of memory\n");
  } catch (const std::exception& e) {
    std::fprintf(stderr, "fathom: internal error, please report it: %s\n", e.what());
  }
  return 1;
}

}  // namespace fathom::cli
