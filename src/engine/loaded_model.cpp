#include "engine/loaded_model.h"

#include <chrono>
#include <functional>
#include <map>

#include "base/error.h"
#include "base/file.h"
#include "base/interrupt.h"
#include "base/progress.h"
#include "engine/stand_in_tokenizer.h"
#include "formats/json_reader.h"
#include "model/synthetic.h"

namespace fathom {
namespace {

/// generation_config.json is optional. The fields that fathom's sampler has are used (null: not stated), the rest
/// concerns other programs.
SamplingParams read_recommended(const std::filesystem::path& file, int64_t vocab) {
  SamplingParams params;
  if (std::filesystem::symlink_status(file).type() == std::filesystem::file_type::not_found) return params;
  const std::string text = read_file(file, size_t{1} << 20), name = printable(file.string(), 400);
  JsonReader reader(text, name);
  bool sample = true;
  const std::map<std::string, std::function<void()>> fields = {
      {"temperature", [&] { params.temperature = reader.number(); }},
      {"top_p", [&] { params.top_p = reader.number(); }},
      {"top_k", [&] { params.top_k = reader.integer(); }},
      {"min_p", [&] { params.min_p = reader.number(); }},
      {"repetition_penalty", [&] { params.repetition_penalty = reader.number(); }},
      {"do_sample", [&] { sample = reader.boolean(); }},
  };
  reader.object([&](const std::string& key) {
    const auto field = fields.find(key);
    if (field == fields.end() || reader.kind() == JsonReader::Kind::null)
      reader.skip();
    else
      field->second();
  });
  reader.finish();
  if (!sample) params.temperature = 0;
  try {
    params.check(vocab);
  } catch (const Error& e) {
    fail("{}: {}", name, e.what());
  }
  return params;
}

/// What all ranks together load.
uint64_t total_bytes(const OpenedModel& opened, LoadOptions options) {
  uint64_t bytes = 0;
  for (int r = 0; r < opened.ranks; ++r) {
    options.shard = {r, opened.ranks};
    bytes += weight_bytes(*opened.source, options);
  }
  return bytes;
}

}  // namespace

OpenedModel open_model(const ModelChoice& choice) {
  if (!choice.synthetic.empty()) {
    auto source = synthetic_source(choice.synthetic);
    check_shards(source->config(), choice.ranks);
    text::Tokenizer tokenizer = stand_in_tokenizer(source->config().vocab_size);
    return {std::move(source), std::move(tokenizer), SamplingParams{}, choice.ranks};
  }
  const std::filesystem::path folder(choice.folder);
  Checkpoint checkpoint(folder);
  check_shards(checkpoint.config(), choice.ranks);
  text::Tokenizer tokenizer = text::Tokenizer::load(folder / "tokenizer.json");
  const int64_t vocab = checkpoint.config().vocab_size;
  if (tokenizer.vocab_size() > vocab)
    fail("{}: the tokenizer has ids up to {}, but the model only {} rows (vocab_size in config.json)",
         printable((folder / "tokenizer.json").string(), 400), tokenizer.vocab_size() - 1, vocab);
  SamplingParams recommended = read_recommended(folder / "generation_config.json", vocab);
  return {checkpoint_source(std::move(checkpoint)), std::move(tokenizer), std::move(recommended), choice.ranks};
}

std::unique_ptr<LoadedModel> load_model(OpenedModel opened, std::shared_ptr<ops::ComputeDevice> device,
                                        const LoadOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const auto devices = ops::devices_like(device, opened.ranks);
  const uint64_t all = opened.ranks == 1 ? opened.source->total_bytes() : total_bytes(opened, options);
  Progress progress("loading weights", all);
  uint64_t before = 0, now = 0;  // bytes of earlier ranks, and of this one
  LoadOptions load = options;
  load.progress = [&](uint64_t done, uint64_t) {
    throw_if_interrupted("loading weights");
    now = done;
    progress.update(before + done);
    if (options.progress) options.progress(before + done, all);
  };
  std::vector<Weights> ranks;
  for (int r = 0; r < opened.ranks; ++r) {
    devices[static_cast<size_t>(r)]->bind();
    load.shard = {r, opened.ranks};
    ranks.push_back(load_weights(*opened.source, make_memory(devices[static_cast<size_t>(r)]), load));
    ranks.back().memory->device().synchronize("loading weights");
    before += now, now = 0;
  }
  device->bind();
  Weights weights = std::move(ranks.front());
  for (size_t r = 1; r < ranks.size(); ++r)
    weights.others.push_back(std::make_shared<const Weights>(std::move(ranks[r])));
  auto model = std::make_unique<LoadedModel>(LoadedModel{
      std::move(opened.source), std::move(weights), std::move(opened.tokenizer), std::move(opened.recommended), 0});
  model->load_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return model;
}

std::unique_ptr<LoadedModel> load_model(const std::filesystem::path& folder, const LoadOptions& options,
                                        std::shared_ptr<ops::ComputeDevice> device) {
  return load_model(open_model({folder.string(), {}}), std::move(device), options);
}

}  // namespace fathom
