// Checkpoint folders: the index and the shards must agree, and nothing may lead out of the folder.
#include "formats/checkpoint.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"
#include "formats/safetensors_builder.h"
#include "formats/temporary_folder.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;

class CheckpointFolder : public testing::Test {
 protected:
  void SetUp() override {
    folder_.write("config.json", read_file(FATHOM_SOURCE_DIR "/models/fairy/config.json"));
    folder_.write("model-00001-of-00002.safetensors", byte_file({"a", "b"}));
    folder_.write("model-00002-of-00002.safetensors", byte_file({"c"}));
    index(R"({"metadata":{"total_size":12},"weight_map":{"a":"model-00001-of-00002.safetensors",)"
          R"("b":"model-00001-of-00002.safetensors","c":"model-00002-of-00002.safetensors"}})");
  }

  void index(const std::string& text) { folder_.write("model.safetensors.index.json", text); }

  /// What opening complains about, without the folder's path.
  std::string complaint() {
    try {
      Checkpoint checkpoint(folder_.path());
    } catch (const Error& e) {
      std::string text = e.what();
      const std::string path = folder_.path().string();
      for (size_t at; (at = text.find(path)) != text.npos;) text.replace(at, path.size(), "F");
      return text;
    }
    return "no error";
  }

  std::string complaint_about_index(const std::string& text) {
    index(text);
    return complaint();
  }

  TemporaryFolder folder_;
};

TEST_F(CheckpointFolder, SoundShardsOpen) {
  const Checkpoint checkpoint(folder_.path());
  EXPECT_EQ(checkpoint.tensors().size(), 3u);
  EXPECT_EQ(checkpoint.info("c").file, 1u);
  EXPECT_EQ(checkpoint.copy<uint8_t>("c"), (std::vector<uint8_t>{0, 1, 2, 3}));
  EXPECT_EQ(checkpoint.copy<uint8_t>("b"), (std::vector<uint8_t>{4, 5, 6, 7}));
}

TEST_F(CheckpointFolder, ASingleFileNeedsNoIndex) {
  fs::remove(folder_.path() / "model.safetensors.index.json");
  folder_.write("model.safetensors", byte_file({"x"}));
  EXPECT_TRUE(Checkpoint(folder_.path()).has("x"));
}

TEST_F(CheckpointFolder, MissingPartsAreNamed) {
  EXPECT_THROW(Checkpoint("/no/such/folder"), Error);
  EXPECT_THROW(Checkpoint(folder_.path() / "config.json"), Error);
  fs::remove(folder_.path() / "model-00002-of-00002.safetensors");
  EXPECT_EQ(complaint(),
            "F/model-00002-of-00002.safetensors: the shard is missing, but model.safetensors.index.json names it "
            "(incomplete download?)");
  fs::remove(folder_.path() / "model.safetensors.index.json");
  EXPECT_EQ(complaint(),
            "F: neither model.safetensors.index.json nor model.safetensors is in the folder (incomplete download?)");
  fs::remove(folder_.path() / "config.json");
  EXPECT_EQ(complaint(), "F: there is no config.json in the folder: not a checkpoint");
}

TEST_F(CheckpointFolder, NamesThatLeaveTheFolderAreRefused) {
  for (const char* name :
       {"../x.safetensors", "/etc/passwd", "sub/x.safetensors", "..", ".", "", "a\\\\b", "x\\u0000.safetensors"}) {
    const std::string what = complaint_about_index(fmt::format(R"({{"weight_map":{{"a":"{}"}}}})", name));
    EXPECT_NE(what.find("is not the name of a file in the checkpoint's folder"), what.npos) << name << ": " << what;
  }
}

TEST_F(CheckpointFolder, LinksThatLeaveTheFolderAreRefused) {
  const TemporaryFolder outside;
  const fs::path target = outside.write("other.safetensors", byte_file({"c"}));
  fs::remove(folder_.path() / "model-00002-of-00002.safetensors");
  fs::create_symlink(target, folder_.path() / "model-00002-of-00002.safetensors");
  EXPECT_NE(complaint().find("F/model-00002-of-00002.safetensors: the link leads out of the checkpoint's folder"),
            std::string::npos)
      << complaint();
}

TEST_F(CheckpointFolder, LinksIntoTheFolderAndIntoAHubCacheAreFollowed) {
  fs::rename(folder_.path() / "model-00002-of-00002.safetensors", folder_.path() / "blob");
  fs::create_symlink("blob", folder_.path() / "model-00002-of-00002.safetensors");
  EXPECT_EQ(complaint(), "no error");

  const TemporaryFolder hub;
  fs::create_directories(hub.path() / "blobs");
  fs::create_directories(hub.path() / "snapshots" / "r1");
  for (const char* name : {"config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors",
                           "model-00002-of-00002.safetensors"}) {
    fs::copy_file(folder_.path() / name, hub.path() / "blobs" / name);
    fs::create_symlink(fs::path("../../blobs") / name, hub.path() / "snapshots" / "r1" / name);
  }
  EXPECT_EQ(Checkpoint(hub.path() / "snapshots" / "r1").tensors().size(), 3u);
  EXPECT_EQ(Checkpoint(hub.path() / "snapshots" / "r1" / ".").tensors().size(), 3u);
}

TEST_F(CheckpointFolder, IndexAndShardsMustAgree) {
  const std::string one = "model-00001-of-00002.safetensors", two = "model-00002-of-00002.safetensors";
  const auto map = [&](const std::string& c_file, const std::string& extra = "", bool with_b = true) {
    return fmt::format(R"({{"weight_map":{{"a":"{}",{}"c":"{}"{}}}}})", one,
                       with_b ? fmt::format(R"("b":"{}",)", one) : "", c_file, extra);
  };
  EXPECT_EQ(complaint_about_index(map(two, fmt::format(R"(,"d":"{}")", two))),
            "F/model.safetensors.index.json: 1 tensors of the index are in no shard: d");
  EXPECT_EQ(complaint_about_index(map(two, "", false)),
            "F/model.safetensors.index.json: 1 tensors of the shards are not in the index: b");
  EXPECT_EQ(complaint_about_index(map(one, fmt::format(R"(,"e":"{}")", two))),
            "F/model.safetensors.index.json: 1 tensors of the index are in no shard: e");
  EXPECT_EQ(complaint_about_index(map(one)),
            "F/model-00002-of-00002.safetensors: the shard is not named in model.safetensors.index.json (left over "
            "from another revision? remove it)");
  folder_.write(two, byte_file({"c", "b2"}));
  folder_.write(one, byte_file({"a", "b"}));
  EXPECT_EQ(
      complaint_about_index(fmt::format(R"({{"weight_map":{{"a":"{0}","b":"{0}","c":"{0}","b2":"{1}"}}}})", one, two)),
      "F/model.safetensors.index.json: 1 tensors are in another shard than the index says: c (the first is in "
      "model-00002-of-00002.safetensors)");
  folder_.write(two, byte_file({"c", "a"}));
  EXPECT_EQ(complaint_about_index(map(two)),
            "F/model-00002-of-00002.safetensors: tensor a is also in model-00001-of-00002.safetensors");
}

TEST_F(CheckpointFolder, ASingleFileBesideAnIndexIsAmbiguous) {
  folder_.write("model.safetensors", byte_file({"a"}));
  EXPECT_EQ(complaint(),
            "F/model.safetensors: the shard is not named in model.safetensors.index.json (left over from another "
            "revision? remove it)");
}

TEST_F(CheckpointFolder, TheTotalSizeIsChecked) {
  std::string text = read_file(folder_.path() / "model.safetensors.index.json");
  text.replace(text.find("12"), 2, "13");
  EXPECT_EQ(complaint_about_index(text),
            "F/model.safetensors.index.json: metadata.total_size is 13, but the tensors have 12 bytes");
}

TEST_F(CheckpointFolder, ABrokenIndexIsRefused) {
  EXPECT_EQ(complaint_about_index(""),
            "F/model.safetensors.index.json: byte 0: the JSON ends where an object was expected");
  EXPECT_EQ(complaint_about_index("{}"), "F/model.safetensors.index.json: weight_map is missing");
  EXPECT_EQ(complaint_about_index(R"({"weight_map":{}})"), "F/model.safetensors.index.json: weight_map is empty");
  EXPECT_EQ(complaint_about_index(R"({"weight_map":{"a":1}})"),
            "F/model.safetensors.index.json: byte 19: expected a string, found \"1}}\"");
  EXPECT_EQ(complaint_about_index(R"({"weight_map":{"a":"x","a":"x"}})"),
            "F/model.safetensors.index.json: byte 23: the name \"a\" appears twice");
  EXPECT_EQ(complaint_about_index(R"({"weight_map":{"a":"x"},"weights":1})"),
            "F/model.safetensors.index.json: byte 24: unknown field \"weights\"");
  EXPECT_EQ(complaint_about_index(R"({"metadata":{"total_size":-5},"weight_map":{"a":"x"}})"),
            "F/model.safetensors.index.json: byte 26: total_size is -5");
}

TEST_F(CheckpointFolder, ADamagedShardIsNamed) {
  folder_.write("model-00002-of-00002.safetensors", byte_file({"c"}).substr(0, 60));
  EXPECT_EQ(complaint().rfind("F/model-00002-of-00002.safetensors: header length", 0), 0u) << complaint();
}

TEST_F(CheckpointFolder, AnotherArchitectureIsRefusedBeforeItsWeightsAreTouched) {
  folder_.write("config.json", R"({"model_type":"deepseek_v3","architectures":["DeepseekV3ForCausalLM"]})");
  index("broken");
  EXPECT_EQ(complaint(),
            "F/config.json: this is DeepSeek-V3, a different architecture that fathom does not support (it runs "
            "DeepSeek-V4)");
}

}  // namespace
}  // namespace fathom
