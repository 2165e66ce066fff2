// Safetensors files, sound and hostile: every damage is one line that names the file and the place.
#include "formats/safetensors.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "formats/safetensors_builder.h"
#include "formats/temporary_folder.h"

namespace fathom {
namespace {

SafetensorsHeader parse(const std::string& image) {
  return parse_safetensors(std::as_bytes(std::span(image)), "f");
}

std::string complaint(const std::string& image) {
  try {
    parse(image);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

std::string complaint_about(std::string_view header, size_t data_bytes) {
  return complaint(safetensors_image(header, data_bytes));
}

TEST(Safetensors, ASoundHeaderGivesItsTensors) {
  const SafetensorsHeader h = parse(safetensors_image(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[],"data_offsets":[12,16]},)"
      R"( "a" : {"shape":[2,3],"dtype":"BF16","data_offsets":[0,12]},"z":{"dtype":"I64","shape":[0,5],"data_offsets":[16,16]}}   )",
      16));
  EXPECT_EQ(h.tensors.size(), 3u);
  EXPECT_EQ(h.metadata.at("format"), "pt");
  const TensorInfo* a = h.tensors.find("a");
  ASSERT_TRUE(a);
  EXPECT_EQ(a->dtype, DType::bf16);
  EXPECT_EQ(a->shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(a->bytes, 12u);
  EXPECT_EQ(a->offset, h.data_begin);
  EXPECT_EQ(a->count(), 6);
  EXPECT_EQ(h.tensors.find("b")->offset, h.data_begin + 12);
  EXPECT_EQ(h.tensors.find("b")->count(), 1);
  EXPECT_EQ(h.tensors.find("z")->count(), 0);
  EXPECT_EQ(h.tensors.find("c"), nullptr);
}

TEST(Safetensors, AnEmptyHeaderIsAFileWithoutTensors) {
  EXPECT_EQ(parse(safetensors_image("{}", 0)).tensors.size(), 0u);
}

TEST(Safetensors, EveryKnownTypeIsReadWithItsSize) {
  for (const DType type : {DType::bf16, DType::f16, DType::f32, DType::f8_e4m3, DType::f8_e8m0, DType::i8, DType::u8,
                           DType::i32, DType::i64}) {
    const int64_t bytes = 3 * size_of(type);
    const SafetensorsHeader h = parse(safetensors_image(
        fmt::format(R"({{"x":{{"dtype":"{}","shape":[3],"data_offsets":[0,{}]}}}})", name_of(type), bytes),
        static_cast<size_t>(bytes)));
    EXPECT_EQ(h.tensors.find("x")->dtype, type);
    EXPECT_EQ(dtype_of(name_of(type)), type);
  }
}

TEST(Safetensors, DamagedLengthsAreRefused) {
  EXPECT_EQ(complaint(""), "f: 0 bytes long, too short for a safetensors file (incomplete download?)");
  EXPECT_EQ(complaint("1234567"), "f: 7 bytes long, too short for a safetensors file (incomplete download?)");
  EXPECT_EQ(complaint(safetensors_image("{}", 0, 3)),
            "f: header length 3 at byte 0, but only 2 bytes follow (incomplete download?)");
  EXPECT_EQ(complaint(safetensors_image("{}", 0, ~uint64_t{0})),
            "f: header length 18446744073709551615 at byte 0 is beyond the format's limit of 100000000 bytes (not a "
            "safetensors file?)");
  EXPECT_EQ(complaint(safetensors_image("", 0, 0)), "f: byte 8: the header does not start with \"{\"");
  EXPECT_EQ(complaint(safetensors_image(" {}", 0)), "f: byte 8: the header does not start with \"{\"");
  EXPECT_EQ(complaint(safetensors_image("{} x", 0)), "f: byte 11: \"x\" after the end of the JSON");
  EXPECT_EQ(complaint(safetensors_image("{\"a\"", 0)), "f: byte 12: the JSON ends where \":\" was expected");
}

TEST(Safetensors, DuplicateNamesAreRefusedHoweverTheyAreSpelt) {
  EXPECT_EQ(complaint_about("{" + byte_tensor("a", 0, 4) + "," + byte_tensor("a", 4, 8) + "}", 8),
            "f: byte 61: the name \"a\" appears twice");
  EXPECT_EQ(complaint_about("{" + byte_tensor("a", 0, 4) + "," + byte_tensor("\\u0061", 4, 8) + "}", 8),
            "f: byte 61: the name \"a\" appears twice");
  EXPECT_EQ(complaint_about(R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1),
            "f: byte 27: the name \"dtype\" appears twice");
}

TEST(Safetensors, OffsetsMustCoverTheDataExactlyOnce) {
  EXPECT_EQ(complaint_about("{" + byte_tensor("a", 0, 4) + "," + byte_tensor("b", 3, 8) + "}", 8),
            "f: tensor b at byte 116 overlaps tensor a, which ends at byte 117");
  EXPECT_EQ(complaint_about("{" + byte_tensor("a", 0, 4) + "," + byte_tensor("b", 5, 8) + "}", 8),
            "f: 1 bytes at byte 117, before tensor b, belong to no tensor");
  EXPECT_EQ(complaint_about("{" + byte_tensor("a", 0, 4) + "," + byte_tensor("b", 4, 8) + "}", 9),
            "f: 1 bytes at byte 121 belong to no tensor");
  EXPECT_EQ(complaint_about("{" + byte_tensor("a", 0, 4) + "," + byte_tensor("b", 4, 8) + "}", 7),
            "f: byte 109: tensor b: data_offsets [4, 8] leave the data of 7 bytes (incomplete download?)");
  EXPECT_EQ(complaint_about("{}", 1), "f: 1 bytes at byte 10 belong to no tensor");
  EXPECT_EQ(complaint_about(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[4,0]}})", 4),
            "f: byte 57: tensor a: data_offsets [4, 0] run backwards");
}

TEST(Safetensors, ShapesMustMatchTheirBytes) {
  EXPECT_EQ(complaint_about(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4),
            "f: byte 58: tensor a: F32 [2] takes 8 bytes, but data_offsets [0, 4] hold 4");
  EXPECT_EQ(complaint_about(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}})", 4),
            "f: byte 78: tensor a: the size of F32 [4294967296, 4294967296] overflows");
  EXPECT_EQ(complaint_about(R"({"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}})", 0),
            "f: byte 76: tensor a: the size of F32 [4611686018427387904] overflows");
  EXPECT_EQ(complaint_about(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4,0],"data_offsets":[0,0]}})", 0),
            "f: byte 80: tensor a: the size of F32 [4611686018427387904, 4, 0] overflows");
  EXPECT_EQ(complaint_about(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4),
            "f: byte 37: tensor a: negative number in shape");
  EXPECT_EQ(complaint_about(R"({"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}})", 4),
            "f: byte 53: tensor a: more than 8 numbers in shape");
  EXPECT_EQ(complaint_about(R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", 4),
            "f: byte 37: expected an integer, found 1.0");
  EXPECT_EQ(complaint_about(R"({"a":{"dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,4]}})", 4),
            "f: byte 37: the integer 99999999999999999999 is out of range");
}

TEST(Safetensors, FieldsMustBeThereAndKnown) {
  EXPECT_EQ(complaint_about(R"({"a":{"dtype":"F4","shape":[2],"data_offsets":[0,4]}})", 4),
            "f: byte 22: tensor a: unknown dtype \"F4\"");
  EXPECT_EQ(complaint_about(R"({"a":{"dtype":"U8","shape":[2]}})", 2), "f: byte 36: tensor a: data_offsets is missing");
  EXPECT_EQ(complaint_about(R"({"a":{"dtype":"U8","data_offsets":[0,2]}})", 2),
            "f: byte 45: tensor a: shape is missing");
  EXPECT_EQ(complaint_about(R"({"a":{"shape":[2],"data_offsets":[0,2]}})", 2),
            "f: byte 44: tensor a: dtype is missing");
  EXPECT_EQ(complaint_about(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2],"strides":[1]}})", 2),
            "f: byte 60: tensor a: unknown field \"strides\"");
  EXPECT_EQ(complaint_about(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0]}})", 2),
            "f: byte 55: tensor a: data_offsets needs two numbers");
  EXPECT_EQ(complaint_about(R"({"a":[]})", 0), "f: byte 13: expected an object, found \"[]}\"");
  EXPECT_EQ(complaint_about(R"({"":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0),
            "f: byte 9: a tensor has an empty name");
}

TEST(Safetensors, NamesThatAreNotTextAreRefusedOrMadePrintable) {
  EXPECT_EQ(complaint_about("{\"a\xff\":{}}", 0), "f: byte 10: a string is not valid UTF-8");
  EXPECT_EQ(complaint_about("{\"a\nb\":{}}", 0), "f: byte 11: a control character in a string");
  EXPECT_EQ(complaint_about(R"({"a\u001b[31m\n":{"dtype":"F4"}})", 0),
            "f: byte 34: tensor a\\x1b[31m\\x0a: unknown dtype \"F4\"");
  EXPECT_EQ(complaint_about(R"({"\ud800":{}})", 0), "f: byte 16: half a surrogate pair in a string");
  const std::string long_name(100000, 'n');
  EXPECT_LT(complaint_about("{\"" + long_name + "\":{\"dtype\":\"F4\"}}", 0).size(), 300u);
}

TEST(Safetensors, DeepNestingIsRefusedWithoutRecursion) {
  EXPECT_EQ(complaint_about(R"({"a":)" + std::string(1000000, '['), 0),
            "f: byte 13: expected an object, found \"[[[[[[[[[[[[[[[[\"");
  const std::string bomb = R"({"__metadata__":{"x":)" + std::string(1000000, '{');
  EXPECT_EQ(complaint_about(bomb, 0), "f: byte 29: expected a string, found \"{{{{{{{{{{{{{{{{\"");
}

TEST(Safetensors, EveryTruncationOfASoundFileIsRefused) {
  const std::string image = byte_file({"one", "two", "three"});
  for (size_t n = 0; n < image.size(); ++n) {
    const std::string what = complaint(image.substr(0, n));
    ASSERT_EQ(what.rfind("f: ", 0), 0u) << n << ": " << what;
    ASSERT_EQ(what.find('\n'), what.npos);
  }
}

TEST(Safetensors, AFileOnDiskIsReadThroughItsMap) {
  const TemporaryFolder folder;
  const SafetensorsFile file(folder.write("x.safetensors", byte_file({"one", "two"})));
  EXPECT_EQ(file.copy<uint8_t>("two"), (std::vector<uint8_t>{4, 5, 6, 7}));
  EXPECT_EQ(file.copy<e2m1x2>("one").size(), 4u);
  EXPECT_THROW(file.copy<int8_t>("two"), Error);
  EXPECT_THROW(file.info("three"), Error);
  EXPECT_THROW(SafetensorsFile(folder.path() / "missing"), Error);
  EXPECT_THROW(SafetensorsFile(folder.write("empty.safetensors", "")), Error);
}

}  // namespace
}  // namespace fathom
