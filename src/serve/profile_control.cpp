#include "serve/profile_control.h"

#include <fmt/format.h>

#include <atomic>
#include <ctime>
#include <filesystem>
#include <iterator>
#include <mutex>

#include "base/file.h"
#include "base/recorder.h"
#include "profile/chrome_trace.h"
#include "profile/summary.h"
#include "serve/fields.h"
#include "serve/openai_json.h"
#include "serve/sampling_fields.h"

namespace fathom::serve {
namespace {

/// One recording, from /start_profile to its file.
struct Recording {
  std::filesystem::path file;
  int64_t wait_steps = 0, steps = 0;  // steps 0: until /stop_profile
  Recorder recorder;
  std::atomic<bool> ended{false};  // the engine does not record any more
};

}  // namespace

struct ProfileControl::Impl : std::enable_shared_from_this<ProfileControl::Impl> {
  explicit Impl(const ProfileOptions& o) : options(o) {}

  void start(Api& api, const std::shared_ptr<Exchange>& exchange);
  void stop(Api& api, const std::shared_ptr<Exchange>& exchange);
  std::shared_ptr<Recording> read(const HttpRequest& request, std::vector<std::string>& warnings);
  void record(Api& api, const std::shared_ptr<Recording>& recording);
  /// On the engine's thread, between steps.
  void finish(Backend& backend, const std::shared_ptr<Recording>& recording);
  /// The trace, and the ranking for /profile.
  void write(const Recording& recording);
  void show_last(Api& api, Exchange& exchange);

  const ProfileOptions options;
  mutable std::mutex mutex;
  std::string last;  // ranking of the last trace, JSON
  std::shared_ptr<Recording> current;
  int64_t number = 0;
};

std::shared_ptr<Recording> ProfileControl::Impl::read(const HttpRequest& request, std::vector<std::string>& warnings) {
  auto recording = std::make_shared<Recording>();
  std::string folder = options.folder;
  if (!request.body.empty()) {
    const text::JsonValue body = read_body(request);
    Fields fields(body);
    recording->steps = fields.integer("num_steps", 1, INT32_MAX).value_or(0);
    recording->wait_steps = fields.integer("start_step", 0, INT32_MAX).value_or(0);
    if (const auto wanted = fields.text("output_dir"); wanted && !wanted->empty()) {
      if (!options.any_folder)
        throw ApiError(403, "permission_error",
                       "output_dir is not taken from clients of a server that is open to a network without API keys; "
                       "start the server with --profile-dir",
                       "output_dir");
      folder = *wanted;
    }
    for (const std::string& activity : fields.texts("activities", 16)) {
      if (activity == "GPU" || activity == "CUDA")
        warnings.push_back(
            "activities: what is recorded is decided by the engine's device, kernels of GPUs or operations of a CPU");
      else if (activity != "CPU")
        fields.refuse("activities", fmt::format("has {}: this server records CPU or GPU", printable(activity)));
    }
    for (const char* name : {"with_stack", "record_shapes", "profile_by_stage", "merge_profiles"})
      if (fields.boolean(name).value_or(false)) warnings.push_back(fmt::format("{} does nothing here", name));
    fields.ignore({"profile_id", "profile_prefix"});
    warn_of_unknown(fields, warnings);
  }
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const std::lock_guard lock(mutex);
  recording->file = std::filesystem::absolute(std::filesystem::path(folder) /
                                              fmt::format("fathom-{}-{}.trace.json.gz", std::time(nullptr), ++number));
  check_output_path(recording->file);
  return recording;
}

void ProfileControl::Impl::finish(Backend& backend, const std::shared_ptr<Recording>& recording) {
  if (recording->ended.exchange(true)) return;
  backend.set_recorder(nullptr);
}

void ProfileControl::Impl::record(Api& api, const std::shared_ptr<Recording>& recording) {
  const auto self = shared_from_this();
  if (recording->wait_steps == 0)
    api.service().between_steps([recording](Backend& backend) {
      if (!recording->ended) backend.set_recorder(&recording->recorder);
    });
  if (recording->wait_steps == 0 && recording->steps == 0) return;
  api.service().before_each_step([self, &api, recording, done = int64_t{0}](Backend& backend) mutable {
    if (recording->ended) return false;
    if (done == recording->wait_steps) backend.set_recorder(&recording->recorder);
    if (recording->steps > 0 && done == recording->wait_steps + recording->steps) {
      self->finish(backend, recording);
      api.on_worker([self, recording] {
        self->write(*recording);
        const std::lock_guard lock(self->mutex);
        if (self->current == recording) self->current = nullptr;
      });
      return false;
    }
    ++done;
    return true;
  });
}

void ProfileControl::Impl::start(Api& api, const std::shared_ptr<Exchange>& exchange) {
  api.prepare(exchange, openai_error, [self = shared_from_this(), &api, exchange]() -> std::function<void()> {
    std::vector<std::string> warnings;
    {
      const std::lock_guard lock(self->mutex);
      if (self->current)
        throw ApiError(
            400, "invalid_request_error",
            "a profile is being recorded already: " + self->current->file.string() + "; /stop_profile ends it");
    }
    const auto recording = self->read(exchange->request(), warnings);
    {
      const std::lock_guard lock(self->mutex);
      self->current = recording;
    }
    self->record(api, recording);
    return [exchange, warnings, file = recording->file.string()] {
      add_warnings(*exchange, warnings);
      exchange->reply(200, "text/plain; charset=utf-8", "Start profiling.\nThe trace will be " + file + "\n");
    };
  });
}

void ProfileControl::Impl::stop(Api& api, const std::shared_ptr<Exchange>& exchange) {
  std::shared_ptr<Recording> recording;
  {
    const std::lock_guard lock(mutex);
    recording = std::exchange(current, nullptr);
  }
  if (!recording)
    return api.fail(*exchange, openai_error,
                    ApiError(400, "invalid_request_error", "no profile is being recorded: /start_profile begins one"));
  // The engine lets go of the recorder first; then the worker may read it.
  api.service().between_steps([self = shared_from_this(), &api, exchange, recording](Backend& backend) {
    self->finish(backend, recording);
    api.prepare(exchange, openai_error, [self, exchange, recording]() -> std::function<void()> {
      self->write(*recording);
      const RecordingCost cost = recording->recorder.cost();
      return [exchange, cost, file = recording->file.string()] {
        std::string text = "Stop profiling.\nThe trace is " + file + "\n";
        if (cost.steps > 0) text += fmt::format("{} of {} steps were recorded", cost.recorded, cost.steps);
        if (cost.seconds > 0) text += fmt::format(", which cost all of them {:.1f} %", 100 * cost.share());
        if (!cost.problem.empty()) text += "; then recording failed: " + printable(cost.problem, 400);
        exchange->reply(200, "text/plain; charset=utf-8", text + (cost.steps > 0 ? "\n" : ""));
      };
    });
  });
}

void ProfileControl::Impl::write(const Recording& recording) {
  profile::write_chrome_trace(recording.recorder, recording.file, {{"model", options.model}});
  const profile::Summary summary = profile::summarize(recording.recorder);
  const auto share = [&](int64_t ns) {
    return static_cast<double>(ns) / static_cast<double>(std::max<int64_t>(1, summary.covered_ns));
  };
  std::string out = R"({"file":)";
  append_quoted(out, recording.file.string());
  fmt::format_to(std::back_inserter(out), R"(,"steps":{},"dropped_spans":{})", summary.steps, summary.dropped);
  if (const RecordingCost& cost = summary.cost; cost.steps > 0) {
    fmt::format_to(std::back_inserter(out), R"(,"steps_passed":{})", cost.steps);
    if (cost.seconds > 0) fmt::format_to(std::back_inserter(out), R"(,"overhead":{:.5f})", cost.share());
  }
  out += R"(,"ops":[)";
  for (const profile::OpTotal& op : summary.rows) {
    out += out.back() == '[' ? R"({"name":)" : R"(,{"name":)";
    append_quoted(out, op.name);
    if (op.device >= 0) fmt::format_to(std::back_inserter(out), R"(,"gpu":{})", op.device);
    fmt::format_to(
        std::back_inserter(out),
        R"(,"share":{:.5f},"calls":{},"seconds":{:.6f},"bytes":{},"flops":{},"gigabytes_per_second":{:.3f}}})",
        share(op.self_ns), op.calls, static_cast<double>(op.self_ns) * 1e-9, op.bytes, op.flops,
        op.gigabytes_per_second());
  }
  const std::lock_guard lock(mutex);
  last = out + "]}";
}

void ProfileControl::Impl::show_last(Api& api, Exchange& exchange) {
  std::string text;
  {
    const std::lock_guard lock(mutex);
    text = last;
  }
  if (text.empty())
    return api.fail(exchange, openai_error,
                    ApiError(404, "not_found_error", "nothing has been profiled: /start_profile records steps"));
  exchange.reply(200, "application/json", text);
}

ProfileControl::ProfileControl(const ProfileOptions& options) : impl_(std::make_shared<Impl>(options)) {}
ProfileControl::~ProfileControl() = default;

std::string ProfileControl::running() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->current ? impl_->current->file.string() : "";
}

std::vector<RouteEntry> ProfileControl::routes() {
  const Route start = [impl = impl_](Api& api, const std::shared_ptr<Exchange>& e) { impl->start(api, e); };
  const Route stop = [impl = impl_](Api& api, const std::shared_ptr<Exchange>& e) { impl->stop(api, e); };
  return {
      {"POST", "/start_profile", start, "records the engine's steps"},
      {"GET", "/start_profile", start, "the same"},
      {"POST", "/stop_profile", stop, "ends the recording and writes the trace"},
      {"GET", "/stop_profile", stop, "the same"},
      {"GET", "/profile", [impl = impl_](Api& api, const std::shared_ptr<Exchange>& e) { impl->show_last(api, *e); },
       "where the time went in the last trace"}};
}

}  // namespace fathom::serve
