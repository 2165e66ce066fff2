// fathom check: does this checkpoint run right on this machine?
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "base/file.h"
#include "base/threads.h"
#include "cli/commands.h"
#include "cli/device.h"
#include "cli/model_setup.h"
#include "engine/self_check.h"

namespace fathom::cli {
namespace {

struct Flags {
  std::string model, goldens, ops = "cpu", device = "auto";
  int64_t threads = 0, tensor_parallel = 1, drafts = SelfCheckOptions{}.draft_requests;
};

void print(const std::string& line) {
  write_all(STDOUT_FILENO, line, "standard output");
}

int check(const Flags& f, const Parser& parser) {
  if (parser.given("--goldens") && f.goldens.empty()) throw UsageError("--goldens needs the name of a folder");
  if (f.threads > 0) set_thread_count(static_cast<int>(f.threads));
  if (f.tensor_parallel > 1) ops::expect_several_devices();
  OpenedModel opened = open_model({f.model, {}, static_cast<int>(f.tensor_parallel)});
  LoadOptions load;
  load.shard.size = opened.ranks;
  load.drafts = opened.ranks == 1 || opened.source->layout().draft == DraftKind::dspark;
  const auto model = load_model(std::move(opened), device_for(f.device, parser.given("--ops")), load);
  for (const auto& field : model->config().unknown_fields)
    std::fprintf(stderr, "note: config.json has a field that fathom does not know: %s\n", field.c_str());
  SelfCheckOptions options{model->device().shares_host_memory() ? f.ops : fast_ops(model->device()), f.goldens,
                           f.drafts};
  const auto beside = std::filesystem::path(f.model) / "goldens";
  if (options.goldens.empty() && std::filesystem::is_directory(beside)) options.goldens = beside;
  int passed = 0, failed = 0, skipped = 0;
  self_check(*model, options, [&](const CheckResult& r) {
    static constexpr const char* words[] = {"ok", "FAILED", "skipped"};
    (r.verdict == Verdict::passed ? passed : r.verdict == Verdict::failed ? failed : skipped) += 1;
    print(fmt::format("{:<8} {:<22} {}\n", words[static_cast<int>(r.verdict)], r.name, r.detail));
  });
  print(fmt::format("{} passed, {} failed, {} skipped\n", passed, failed, skipped));
  return failed ? 1 : 0;
}

}  // namespace

Command check_command() {
  return {"check", "Test a checkpoint and this build against each other", [](Parser& p) -> std::function<int()> {
            auto f = std::make_shared<Flags>();
            p.positional("MODEL", f->model, "Folder of a checkpoint");
            p.option("--goldens", f->goldens, "Folder of golden vectors (default: MODEL/goldens, if there is one)");
            p.choice("--ops", f->ops, {"cpu", "ref"}, "Operations to test");
            p.choice("--device", f->device, {"auto", "cpu", "cuda"}, "Where to run; auto: on the GPU if there is one");
            p.option("--drafts", f->drafts, "Requests whose output with drafts is compared with that without", 1,
                     100000);
            p.option("--tensor-parallel", f->tensor_parallel, kTensorParallelHelp, 1, 64);
            p.option("--threads", f->threads, "Threads; 0: all processors", 0, 4096);
            p.footer("Exit status: 0 all passed, 1 a check failed or bad input, 2 usage.");
            Parser* parser = &p;
            return [f, parser] { return check(*f, *parser); };
          }};
}

}  // namespace fathom::cli
