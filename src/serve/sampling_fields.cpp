#include "serve/sampling_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace fathom::serve {
namespace {

using text::JsonValue;

constexpr size_t kMostStops = 64, kMostBiases = 1024;

void read_stream_options(Fields& fields, CommonFields& common) {
  const JsonValue* object = fields.object("stream_options");
  if (!object) return;
  if (!common.stream) fields.refuse("stream_options", "needs stream to be true");
  Fields options(*object, "stream_options.");
  common.include_usage = options.boolean("include_usage").value_or(false);
  warn_of_unknown(options, common.warnings);
}

/// Keys are token ids as text, values numbers from -100 to 100.
void read_logit_bias(Fields& fields, int64_t vocab, SamplingParams& sampling) {
  const JsonValue* object = fields.object("logit_bias");
  if (!object) return;
  if (object->members.size() > kMostBiases)
    fields.refuse("logit_bias",
                  fmt::format("has {} entries, at most {} are possible", object->members.size(), kMostBiases));
  for (const auto& [key, value] : object->members) {
    int32_t id = 0;
    const auto r = std::from_chars(key.data(), key.data() + key.size(), id);
    if (r.ec != std::errc{} || r.ptr != key.data() + key.size() || id < 0 || id >= vocab)
      fields.refuse("logit_bias",
                    fmt::format("has the key {}, keys are token ids from 0 to {}", printable(key, 40), vocab - 1));
    const auto bias = number_of(value);
    if (!bias || *bias < -100 || *bias > 100)
      fields.refuse("logit_bias", fmt::format("of token {} must be a number from -100 to 100", id));
    sampling.logit_bias.emplace_back(id, *bias);
  }
}

void read_sampling(Fields& fields, const ApiModel& model, SamplingParams& s) {
  s = model.recommended;
  if (const auto v = fields.number("temperature", 0, 100)) s.temperature = *v;
  if (const auto v = fields.number("top_p", 0, 1)) s.top_p = std::max(*v, 1e-9);  // 0: the likeliest token alone
  if (const auto v = fields.integer("top_k", -1, INT32_MAX)) s.top_k = std::max<int64_t>(0, *v);
  if (const auto v = fields.number("min_p", 0, 1)) s.min_p = std::min(*v, 1 - 1e-9);
  if (const auto v = fields.number("repetition_penalty", 1e-3, 100)) s.repetition_penalty = *v;
  if (const auto v = fields.number("frequency_penalty", -100, 100)) s.frequency_penalty = *v;
  if (const auto v = fields.number("presence_penalty", -100, 100)) s.presence_penalty = *v;
  read_logit_bias(fields, model.config->vocab_size, s);
}

void check_model(Fields& fields, const ApiModel& model, CommonFields& common) {
  common.model = fields.text("model").value_or("");
  if (common.model.empty()) {
    common.model = model.names.front();
  } else if (std::find(model.names.begin(), model.names.end(), common.model) == model.names.end()) {
    throw ApiError(404, "invalid_request_error",
                   fmt::format("the model {} does not exist here; this server has {}", printable(common.model),
                               fmt::join(model.names, ", ")),
                   "model", "model_not_found");
  }
}

}  // namespace

CommonFields read_common(Fields& fields, const ApiModel& model, uint64_t random, TextRequest& request) {
  CommonFields common;
  check_model(fields, model, common);
  common.stream = fields.boolean("stream").value_or(false);
  read_stream_options(fields, common);
  read_sampling(fields, model, request.sampling);
  request.sampling.seed =
      static_cast<uint64_t>(fields.integer("seed", INT64_MIN, INT64_MAX).value_or(static_cast<int64_t>(random)));
  request.n = fields.integer("n", 1, model.max_choices).value_or(1);
  request.min_tokens = fields.integer("min_tokens", 0, INT32_MAX).value_or(0);
  request.end_ids.assign(model.config->eos_ids.begin(), model.config->eos_ids.end());
  request.ignore_end = fields.boolean("ignore_eos").value_or(false);
  request.text.stop = fields.texts("stop", kMostStops);
  for (const std::string& stop : request.text.stop)
    if (stop.empty()) fields.refuse("stop", "holds an empty text");
  for (const int64_t id : fields.integers("stop_token_ids", kMostStops, 0, model.config->vocab_size - 1))
    request.stop_ids.push_back(static_cast<int32_t>(id));
  request.text.include_stop = fields.boolean("include_stop_str_in_output").value_or(false);
  request.text.stop_in_reasoning = fields.boolean("stop_in_reasoning").value_or(false);
  request.client = fields.text("user").value_or("");
  request.prefix.salt = fields.text("cache_salt").value_or("");
  request.timeout = model.timeout;
  if (const auto v = fields.number("timeout", 0.001, 86400)) {
    const auto wanted = std::chrono::milliseconds(static_cast<int64_t>(*v * 1000));
    request.timeout = model.timeout.count() > 0 ? std::min(model.timeout, wanted) : wanted;
  }
  // Known fields that say nothing about the output.
  fields.ignore(
      {"metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"});
  return common;
}

void add_warnings(Exchange& exchange, const std::vector<std::string>& warnings) {
  if (!warnings.empty())
    exchange.add_header("x-fathom-warning", printable(fmt::format("{}", fmt::join(warnings, "; ")), 2000));
}

void warn_of_unknown(const Fields& fields, std::vector<std::string>& warnings) {
  const auto names = fields.unknown();
  if (!names.empty()) warnings.push_back(fmt::format("ignored, because not known: {}", fmt::join(names, ", ")));
}

}  // namespace fathom::serve
