#include "engine/loaded_model.h"

#include <chrono>

#include "base/error.h"
#include "base/file.h"
#include "base/progress.h"
#include "formats/json_reader.h"

namespace fathom {
namespace {

/// generation_config.json is optional; the fields that speak of sampling are used, the rest concerns other programs.
SamplingParams read_recommended(const std::filesystem::path& file) {
  SamplingParams params;
  if (!std::filesystem::exists(file)) return params;
  const std::string text = read_file(file, size_t{1} << 20);
  JsonReader reader(text, file.string());
  bool sample = true;
  reader.object([&](const std::string& key) {
    if (key == "temperature" && reader.kind() == JsonReader::Kind::number)
      params.temperature = reader.number();
    else if (key == "top_p" && reader.kind() == JsonReader::Kind::number)
      params.top_p = reader.number();
    else if (key == "top_k" && reader.kind() == JsonReader::Kind::number)
      params.top_k = reader.integer();
    else if (key == "do_sample" && reader.kind() == JsonReader::Kind::boolean)
      sample = reader.boolean();
    else
      reader.skip();
  });
  reader.finish();
  if (!sample) params.temperature = 0;
  return params;
}

}  // namespace

std::unique_ptr<LoadedModel> load_model(const std::filesystem::path& folder, const LoadOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  Checkpoint checkpoint(folder);
  text::Tokenizer tokenizer = text::Tokenizer::load(folder / "tokenizer.json");
  const ModelConfig& config = checkpoint.config();
  if (tokenizer.vocab_size() > config.vocab_size)
    fail("{}: the tokenizer has ids up to {}, but the model only {} rows (vocab_size in config.json)",
         printable((folder / "tokenizer.json").string(), 400), tokenizer.vocab_size() - 1, config.vocab_size);
  SamplingParams recommended = read_recommended(folder / "generation_config.json");
  recommended.check(config.vocab_size);

  Progress progress("loading weights", checkpoint.total_bytes());
  LoadOptions load = options;
  if (!load.progress) load.progress = [&](uint64_t done, uint64_t) { progress.update(done); };
  Weights weights = load_weights(checkpoint, make_host_memory(), load);
  checkpoint.release_all();
  auto model = std::make_unique<LoadedModel>(
      LoadedModel{std::move(checkpoint), std::move(weights), std::move(tokenizer), std::move(recommended), 0});
  model->load_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return model;
}

}  // namespace fathom
