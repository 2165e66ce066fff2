#include "formats/checkpoint.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "formats/json_reader.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;

constexpr size_t max_index = size_t{256} << 20;  // bytes; the index of V4-Pro has 10 MB

std::string shown(const fs::path& path) {
  return printable(path.string(), 400);
}

/// A shard's name in the index must be a plain file name: nothing that could lead out of the folder.
bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
}

/// Throws Error when `file` is a symbolic link that leaves `folder`. The one layout of links that is common and safe
/// is the hub cache: FOLDER = .../snapshots/REVISION, files = links to .../blobs/HASH.
void check_inside(const fs::path& folder, const fs::path& file) {
  std::error_code error;
  const fs::path real_folder = fs::canonical(folder, error);
  if (error) fail("{}: cannot resolve the folder: {}", shown(folder), error.message());
  const fs::path real_file = fs::canonical(file, error);
  if (error) fail("{}: cannot open: {}", shown(file), error.message());
  const fs::path home = real_file.parent_path();
  const bool inside =
      std::mismatch(real_folder.begin(), real_folder.end(), home.begin(), home.end()).first == real_folder.end();
  const bool hub_cache =
      real_folder.parent_path().filename() == "snapshots" && home == real_folder.parent_path().parent_path() / "blobs";
  if (!inside && !hub_cache)
    fail("{}: the link leads out of the checkpoint's folder, to {}", shown(file), shown(real_file));
}

/// "a, b and 7 more"
std::string few(const std::vector<std::string>& names) {
  constexpr size_t limit = 3;
  std::vector<std::string> first;
  for (size_t i = 0; i < std::min(limit, names.size()); ++i) first.push_back(printable(names[i]));
  std::string out = fmt::format("{}", fmt::join(first, ", "));
  if (names.size() > limit) out += fmt::format(" and {} more", names.size() - limit);
  return out;
}

}  // namespace

CheckpointIndex parse_index(std::string_view text, const std::string& name) {
  CheckpointIndex index;
  bool has_map = false;
  JsonReader reader(text, name);
  const auto read_map = [&] {
    std::unordered_map<std::string, uint32_t> positions;
    has_map = true;
    reader.object([&](const std::string& tensor) {
      const std::string file = reader.string();
      if (tensor.empty()) reader.fail("a tensor has an empty name");
      if (!is_plain_name(file))
        reader.fail(fmt::format("tensor {}: \"{}\" is not the name of a file in the checkpoint's folder",
                                printable(tensor), printable(file)));
      const auto [found, fresh] = positions.try_emplace(file, static_cast<uint32_t>(index.files.size()));
      if (fresh) index.files.push_back(file);
      index.tensors.emplace_back(tensor, found->second);
    });
  };
  reader.object([&](const std::string& key) {
    if (key == "weight_map") return read_map();
    if (key != "metadata") reader.fail(fmt::format("unknown field \"{}\"", printable(key, 40)));
    reader.object([&](const std::string& field) {
      if (field != "total_size") return reader.skip();
      const int64_t size = reader.integer();
      if (size < 0) reader.fail(fmt::format("total_size is {}", size));
      index.total_size = static_cast<uint64_t>(size);
      index.has_total_size = true;
    });
  });
  reader.finish();
  if (!has_map) fail("{}: weight_map is missing", name);
  if (index.tensors.empty()) fail("{}: weight_map is empty", name);
  return index;
}

Checkpoint::Checkpoint(const fs::path& folder) : folder_(folder) {
  std::error_code error;
  const fs::file_status status = fs::status(folder, error);
  if (status.type() == fs::file_type::not_found)
    fail("{}: no such folder (a checkpoint is a local folder with config.json and *.safetensors)", shown(folder));
  if (error) fail("{}: cannot open: {}", shown(folder), error.message());
  if (status.type() != fs::file_type::directory)
    fail("{}: is not a folder (a checkpoint is a folder with config.json and *.safetensors)", shown(folder));

  const bool has_config = fs::exists(folder / "config.json", error);
  if (error) fail("{}: cannot open: {}", shown(folder / "config.json"), error.message());
  if (!has_config) fail("{}: there is no config.json in the folder: not a checkpoint", shown(folder));
  config_ = read_config(folder / "config.json");
  const fs::path index = folder / "model.safetensors.index.json", single = folder / "model.safetensors";
  if (fs::exists(fs::symlink_status(index, error))) {
    open_index(index);
  } else if (fs::exists(fs::symlink_status(single, error))) {
    add_file(single);
  } else {
    fail("{}: neither model.safetensors.index.json nor model.safetensors is in the folder (incomplete download?)",
         shown(folder));
  }
}

void Checkpoint::add_file(const fs::path& path) {
  check_inside(folder_, path);
  const SafetensorsFile& file = files_.emplace_back(path);
  for (TensorInfo tensor : file.tensors().all()) {
    tensor.file = static_cast<uint32_t>(files_.size() - 1);
    total_bytes_ += tensor.bytes;
    if (!tensors_.add(tensor))
      fail("{}: tensor {} is also in {}", shown(path), printable(tensor.name),
           shown(files_[tensors_.find(tensor.name)->file].path().filename()));
  }
}

void Checkpoint::check_strays(const CheckpointIndex& index, const fs::path& path) const {
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) {
    const std::string name = entry.path().filename().string();
    if (name != "model.safetensors" && !(name.starts_with("model-") && name.ends_with(".safetensors"))) continue;
    if (std::find(index.files.begin(), index.files.end(), name) == index.files.end())
      fail("{}: the shard is not named in {} (left over from another revision? remove it)", shown(entry.path()),
           shown(path.filename()));
  }
}

void Checkpoint::open_index(const fs::path& path) {
  const CheckpointIndex index = parse_index(read_file(path, max_index), shown(path));
  for (const std::string& name : index.files) {
    std::error_code error;
    if (!fs::exists(folder_ / name, error))
      fail("{}: the shard is missing, but {} names it (incomplete download?)", shown(folder_ / name),
           shown(path.filename()));
    add_file(folder_ / name);
  }

  check_strays(index, path);
  std::vector<std::string> missing, misplaced;
  for (const auto& [name, file] : index.tensors) {
    const TensorInfo* tensor = tensors_.find(name);
    if (!tensor)
      missing.push_back(name);
    else if (tensor->file != file)
      misplaced.push_back(name);
  }
  if (!missing.empty())
    fail("{}: {} tensors of the index are in no shard: {}", shown(path), missing.size(), few(missing));
  if (!misplaced.empty()) {
    const TensorInfo& first = info(misplaced[0]);
    fail("{}: {} tensors are in another shard than the index says: {} (the first is in {})", shown(path),
         misplaced.size(), few(misplaced), shown(files_[first.file].path().filename()));
  }
  if (index.tensors.size() != tensors_.size()) {
    TensorTable listed;
    for (const auto& entry : index.tensors) listed.add({.name = entry.first});
    std::vector<std::string> extra;
    for (const TensorInfo& tensor : tensors_.all())
      if (!listed.find(tensor.name)) extra.push_back(tensor.name);
    fail("{}: {} tensors of the shards are not in the index: {}", shown(path), extra.size(), few(extra));
  }
  if (index.has_total_size && index.total_size != total_bytes_)
    fail("{}: metadata.total_size is {}, but the tensors have {} bytes", shown(path), index.total_size, total_bytes_);
}

const TensorInfo& Checkpoint::info(std::string_view name) const {
  const TensorInfo* tensor = tensors_.find(name);
  if (!tensor) fail("{}: there is no tensor {}", shown(folder_), printable(name));
  return *tensor;
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> out;
  out.reserve(tensors_.size());
  for (const TensorInfo& tensor : tensors_.all()) out.push_back(tensor.name);
  return out;
}

void Checkpoint::release_all() const {
  for (const SafetensorsFile& file : files_) file.map().release(0, file.map().bytes().size());
}

}  // namespace fathom
