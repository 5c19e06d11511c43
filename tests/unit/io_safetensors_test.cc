#include "io/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "io/recording_file_system.h"
#include "io_temp_directory.h"
#include "tessera/error.h"

namespace tessera::io {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string data_path(const std::string& name) {
  return std::string(TESSERA_TEST_DATA) + "/safetensors/" + name + ".safetensors";
}

SafetensorsHeader read(const std::string& path) {
  return read_safetensors_header(*real_file_system().open(path, OpenMode::kRead));
}

std::string read_error(const std::string& path) {
  try {
    read(path);
  } catch (const CorruptionError& error) {
    EXPECT_THAT(error.what(), HasSubstr(path));
    return error.what();
  }
  return "no error";
}

// The error for a header with `data_bytes` of data behind it.
std::string parse_error(const std::string& json, uint64_t data_bytes) {
  try {
    parse_safetensors_header(json, 8 + json.size() + data_bytes, "some.file");
  } catch (const CorruptionError& error) {
    EXPECT_THAT(error.what(), HasSubstr("some.file: "));
    return error.what();
  }
  return "no error";
}

SafetensorsHeader parse(const std::string& json, uint64_t data_bytes) {
  return parse_safetensors_header(json, 8 + json.size() + data_bytes, "some.file");
}

const SafetensorsEntry& find(const SafetensorsHeader& header, const std::string& name) {
  for (const SafetensorsEntry& entry : header.entries) {
    if (entry.name == name) return entry;
  }
  throw std::runtime_error("no entry " + name);
}

TEST(SafetensorsFiles, ReadsWhatPyTorchWrites) {
  const SafetensorsHeader header = read(data_path("torch_adam_2"));
  ASSERT_EQ(header.entries.size(), 23U);
  EXPECT_EQ(header.data_offset, 3120U);
  EXPECT_EQ(header.data_bytes, 211U);
  EXPECT_EQ(header.metadata.at("format"), "pt");
  EXPECT_EQ(header.metadata.at("DCP_VERSION"), "1.0");
  EXPECT_THAT(header.metadata.at("DCP_SHARDING_INFO"),
              HasSubstr("\"model.emb\": {\"saved_offsets\": [4, 0]}"));
  EXPECT_EQ(header.entries.front().name, "model.cnt");
  EXPECT_EQ(header.entries.front().dtype, "I64");
  EXPECT_THAT(header.entries.front().shape, IsEmpty());
  const SafetensorsEntry& emb = find(header, "model.emb");
  EXPECT_EQ(emb.dtype, "F32");
  EXPECT_THAT(emb.shape, ElementsAre(3, 2));
  EXPECT_EQ(emb.begin, 40U);
  EXPECT_EQ(emb.end, 64U);
  EXPECT_THAT(find(header, "model.one.weight").shape, ElementsAre(0, 5));
  EXPECT_EQ(find(header, "model.one.weight").begin, find(header, "model.one.weight").end);
  EXPECT_THAT(find(header, "optim.state.emb.step").shape, IsEmpty());
  EXPECT_EQ(find(header, "model.bf").dtype, "BF16");
  EXPECT_EQ(header.entries.back().name, "model.mask");
  EXPECT_EQ(header.entries.back().end, 211U);
}

TEST(SafetensorsFiles, ReadsEveryAcceptedRecording) {
  struct Case {
    const char* name;
    size_t entries;
    uint64_t data_offset;
    uint64_t data_bytes;
    size_t metadata;
  };
  static constexpr Case kCases[] = {
      {"torch_adam_1", 15, 2144, 312, 3},      {"torch_adagrad_1", 10, 1344, 208, 3},
      {"torch_adagrad_2", 18, 2328, 155, 3},   {"torch_adam_consolidated", 6, 438, 172, 0},
      {"handmade_base_1", 14, 1920, 116, 1},   {"handmade_base_2", 9, 1248, 72, 1},
      {"handmade_base_3", 18, 2432, 335, 1},   {"handmade_colbox", 14, 1912, 128, 1},
      {"handmade_empty_box", 1, 160, 0, 1},    {"handmade_extra_meta", 14, 2632, 116, 4},
      {"handmade_i64_step", 14, 1928, 136, 1}, {"handmade_missing_info", 14, 1993, 116, 1},
      {"handmade_no_metadata", 1, 72, 8, 0},   {"handmade_pad4096", 14, 4096, 116, 1},
  };
  for (const Case& c : kCases) {
    const SafetensorsHeader header = read(data_path(c.name));
    EXPECT_EQ(header.entries.size(), c.entries) << c.name;
    EXPECT_EQ(header.data_offset, c.data_offset) << c.name;
    EXPECT_EQ(header.data_bytes, c.data_bytes) << c.name;
    EXPECT_EQ(header.metadata.size(), c.metadata) << c.name;
  }
}

TEST(SafetensorsFiles, RefusesDamagedRecordingsByName) {
  EXPECT_THAT(read_error(data_path("handmade_dupkey")), HasSubstr("'model.emb' is there twice"));
  EXPECT_THAT(read_error(data_path("handmade_trailer")),
              HasSubstr("4 bytes follow the data of the last tensor"));
  EXPECT_THAT(read_error(data_path("handmade_hole_in_data")),
              AllOf(HasSubstr("tensor 'model.emb' begins at data byte 64"), HasSubstr("a hole")));
  EXPECT_THAT(read_error(data_path("torch_adam_withgroups")),
              AllOf(HasSubstr("zip archive"), HasSubstr("param_groups")));
  EXPECT_THAT(read_error(data_path("torch_adam_overwritten")),
              HasSubstr("175 bytes follow the data of the last tensor"));
}

TEST(SafetensorsFiles, EveryTruncationIsAnError) {
  const TempDirectory directory;
  const std::string whole = slurp(data_path("torch_adam_1"));
  for (size_t size = 0; size < whole.size(); ++size) {
    const std::string json = size > 8 ? whole.substr(8, size - 8) : "";
    if (size < 40 || size % 97 == 0 || size + 3 > whole.size()) {
      spill(directory / "cut", whole.substr(0, size));
      EXPECT_NE(read_error(directory / "cut"), "no error") << size << " bytes";
    }
    EXPECT_NE(parse_error(json.substr(0, 2136), json.size() > 2136 ? json.size() - 2136 : 0),
              "no error")
        << size << " bytes";
  }
}

TEST(SafetensorsFiles, ReadsTheHeaderAndNoByteOfData) {
  RecordingFileSystem files(real_file_system());
  const std::string path = data_path("torch_adam_1");
  read_safetensors_header(*files.open(path, OpenMode::kRead));
  EXPECT_THAT(files.reads(), ElementsAre(FileAccess{path, 0, 8}, FileAccess{path, 8, 2136}));
}

TEST(SafetensorsFiles, HugeHeaderLengthsAreRefusedBeforeAnythingIsAllocated) {
  const TempDirectory directory;
  spill(directory / "f", std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10));
  EXPECT_THAT(read_error(directory / "f"), HasSubstr("header of 18446744073709551615 bytes"));
  spill(directory / "f", std::string("\x01\xe1\xf5\x05\0\0\0\0{}", 10));  // 100 000 001
  EXPECT_THAT(read_error(directory / "f"), HasSubstr("over the format's limit"));
  spill(directory / "f", std::string("\x03\0\0\0\0\0\0\0{}", 10));
  EXPECT_THAT(read_error(directory / "f"), HasSubstr("truncated: 10 bytes"));
  spill(directory / "f", std::string("\0\0\0\0\0\0\0\0", 8));
  EXPECT_THAT(read_error(directory / "f"), HasSubstr("does not begin with '{'"));
  spill(directory / "f", "");
  EXPECT_THAT(read_error(directory / "f"), HasSubstr("0 bytes are too few"));
  spill(directory / "f", std::string("\x02\0\0\0\0\0\0\0{}", 10));
  EXPECT_THAT(read(directory / "f").entries, IsEmpty());
}

TEST(SafetensorsParse, AcceptsSpacesBehindTheHeaderAndAnyKeyOrder) {
  const SafetensorsHeader header =
      parse(R"({"a":{"data_offsets":[0,4],"shape":[4],"dtype":"U8"}}    )", 4);
  EXPECT_EQ(header.entries.at(0).name, "a");
  EXPECT_THAT(parse(R"({"__metadata__":{}})", 0).entries, IsEmpty());
}

TEST(SafetensorsParse, ReturnsEntriesInOrderOfTheirData) {
  const SafetensorsHeader header = parse(R"({"z":{"dtype":"U8","shape":[0],"data_offsets":[2,2]},)"
                                         R"("b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]},)"
                                         R"("a":{"dtype":"I16","shape":[],"data_offsets":[0,2]}})",
                                         3);
  ASSERT_EQ(header.entries.size(), 3U);
  EXPECT_EQ(header.entries[0].name, "a");
  EXPECT_EQ(header.entries[1].name, "z");
  EXPECT_EQ(header.entries[2].name, "b");
}

TEST(SafetensorsParse, KeepsUnicodeAndEscapedNames) {
  const SafetensorsHeader header =
      parse(R"({"gew\u00e4cht\"\n.größe":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0);
  EXPECT_EQ(header.entries.at(0).name,
            "gew\xc3\xa4"
            "cht\"\n.größe");
}

struct Refusal {
  const char* label;
  std::string json;
  uint64_t data_bytes;
  const char* message;
};

void PrintTo(const Refusal& refusal, std::ostream* out) { *out << refusal.label; }

std::string tensor(const std::string& fields) { return "{\"a\":{" + fields + "}}"; }

std::vector<Refusal> refusals() {
  const std::string good = R"("dtype":"U8","shape":[4],"data_offsets":[0,4])";
  return {
      {"Empty", "", 0, "does not begin with '{'"},
      {"Array", "[]", 0, "does not begin with '{'"},
      {"LeadingSpace", " {}", 0, "does not begin with '{'"},
      {"TrailingNewline", "{}\n", 0, "does not end with '}'"},
      {"TrailingNul", std::string("{}\0", 3), 0, "does not end with '}'"},
      {"TwoObjects", "{}{}", 0, "no valid JSON"},
      {"Comment", "{/**/}", 0, "no valid JSON"},
      {"Unclosed", "{\"a\":{}", 0, "tensor 'a' has no dtype"},
      {"BadUtf8", "{\"\xff\":{}}", 0, "no valid JSON"},
      {"TensorIsNumber", R"({"a":1})", 0, "'a' is a number instead of an object"},
      {"TensorIsArray", R"({"a":[]})", 0, "'a' is an array instead of an object"},
      {"TensorIsNull", R"({"a":null})", 0, "'a' is null instead of an object"},
      {"TensorIsString", R"({"a":"x"})", 0, "'a' is a string instead of an object"},
      {"NoDtype", tensor(R"("shape":[4],"data_offsets":[0,4])"), 4, "'a' has no dtype"},
      {"NoShape", tensor(R"("dtype":"U8","data_offsets":[0,4])"), 4, "'a' has no shape"},
      {"NoOffsets", tensor(R"("dtype":"U8","shape":[4])"), 4, "'a' has no data_offsets"},
      {"UnknownField", tensor(good + R"(,"extra":1)"), 4, "'a' has the unknown key 'extra'"},
      {"TwoDtypes", tensor(good + R"(,"dtype":"U8")"), 4, "'a' has two keys dtype"},
      {"TwoShapes", tensor(good + R"(,"shape":[4])"), 4, "'a' has two keys shape"},
      {"TwoOffsets", tensor(good + R"(,"data_offsets":[0,4])"), 4, "'a' has two keys data_offsets"},
      {"TwoTensors", "{\"a\":{" + good + "},\"a\":{" + good + "}}", 4, "'a' is there twice"},
      {"EscapedTwice", "{\"a\":{" + good + "},\"\\u0061\":{" + good + "}}", 4,
       "'a' is there twice"},
      {"UnknownDtype", tensor(R"("dtype":"F31","shape":[4],"data_offsets":[0,4])"), 4,
       "'a' has the unsupported dtype 'F31'"},
      {"SubByteDtype", tensor(R"("dtype":"F4","shape":[8],"data_offsets":[0,4])"), 4,
       "unsupported dtype 'F4'"},
      {"LowerCaseDtype", tensor(R"("dtype":"u8","shape":[4],"data_offsets":[0,4])"), 4,
       "unsupported dtype 'u8'"},
      {"DtypeIsNumber", tensor(R"("dtype":1,"shape":[4],"data_offsets":[0,4])"), 4, "'a' holds"},
      {"ShapeIsNumber", tensor(R"("dtype":"U8","shape":4,"data_offsets":[0,4])"), 4, "'a' holds"},
      {"ShapeHoldsArray", tensor(R"("dtype":"U8","shape":[[4]],"data_offsets":[0,4])"), 4,
       "'a' holds an array"},
      {"NegativeSize", tensor(R"("dtype":"U8","shape":[-4],"data_offsets":[0,4])"), 4,
       "'a' holds a negative number"},
      {"FractionalSize", tensor(R"("dtype":"U8","shape":[4.0],"data_offsets":[0,4])"), 4,
       "'a' holds the number '4.0'"},
      {"ExponentSize", tensor(R"("dtype":"U8","shape":[4e0],"data_offsets":[0,4])"), 4,
       "'a' holds the number '4e0'"},
      {"SizeOver63Bits",
       tensor(R"("dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,4])"), 4,
       "'a' has a size over 2^63"},
      {"SizeOver64Bits",
       tensor(R"("dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,4])"), 4,
       "'a' holds"},
      {"OneOffset", tensor(R"("dtype":"U8","shape":[4],"data_offsets":[0])"), 4,
       "'a' needs two data_offsets"},
      {"NoOffsetNumbers", tensor(R"("dtype":"U8","shape":[4],"data_offsets":[])"), 4,
       "'a' needs two data_offsets"},
      {"ThreeOffsets", tensor(R"("dtype":"U8","shape":[4],"data_offsets":[0,4,8])"), 4,
       "'a' has more than two data_offsets"},
      {"OffsetIsString", tensor(R"("dtype":"U8","shape":[4],"data_offsets":[0,"4"])"), 4,
       "'a' holds a string"},
      {"ReversedOffsets", tensor(R"("dtype":"U8","shape":[4],"data_offsets":[4,0])"), 4,
       "'a' has bytes 4 to 0 of a data section of 4 bytes"},
      {"OffsetsOutOfBounds", tensor(R"("dtype":"U8","shape":[5],"data_offsets":[0,5])"), 4,
       "'a' has bytes 0 to 5 of a data section of 4 bytes"},
      {"HugeOffset", tensor(R"("dtype":"U8","shape":[4],"data_offsets":[0,18446744073709551615])"),
       4, "'a' has bytes 0 to 18446744073709551615"},
      {"LengthContradictsShape", tensor(R"("dtype":"U8","shape":[3],"data_offsets":[0,4])"), 4,
       "'a' has 4 bytes, which its dtype U8 and shape [3] contradict"},
      {"LengthContradictsDtype", tensor(R"("dtype":"I16","shape":[4],"data_offsets":[0,4])"), 4,
       "'a' has 4 bytes, which its dtype I16"},
      {"ScalarNeedsOneElement", tensor(R"("dtype":"F32","shape":[],"data_offsets":[0,0])"), 0,
       "'a' has 0 bytes"},
      {"OverflowingShape",
       tensor(R"("dtype":"U8","shape":[4294967296,4294967296,4],"data_offsets":[0,0])"), 0,
       "'a' has 0 bytes"},
      {"ZeroHidesNoOverflow",
       tensor(R"("dtype":"U8","shape":[4294967296,4294967296,0],"data_offsets":[0,0])"), 0,
       "'a' has 0 bytes"},
      {"Overlap",
       R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
       R"("b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
       4, "tensor 'b' begins at data byte 2, but the data before it ends at 3: an overlap"},
      {"SameBytes",
       R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
       R"("b":{"dtype":"I8","shape":[4],"data_offsets":[0,4]}})",
       4, "tensor 'b' begins at data byte 0"},
      {"Hole",
       R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
       R"("b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
       4, "tensor 'b' begins at data byte 2, but the data before it ends at 1: a hole"},
      {"EmptyTensorInsideAnother",
       R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
       R"("b":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}})",
       4, "tensor 'b' begins at data byte 2"},
      {"HoleAtTheStart", tensor(R"("dtype":"U8","shape":[3],"data_offsets":[1,4])"), 4, "a hole"},
      {"Trailer", tensor(R"("dtype":"U8","shape":[3],"data_offsets":[0,3])"), 4,
       "1 bytes follow the data"},
      {"DataWithoutTensors", "{}", 1, "1 bytes follow the data"},
      {"MetadataIsString", R"({"__metadata__":"x"})", 0, "__metadata__ is a string"},
      {"MetadataIsNull", R"({"__metadata__":null})", 0, "__metadata__ is null"},
      {"MetadataValueIsNumber", R"({"__metadata__":{"k":1}})", 0,
       "__metadata__ key 'k' is a number instead of a string"},
      {"MetadataValueIsObject", R"({"__metadata__":{"k":{}}})", 0,
       "__metadata__ key 'k' is an object instead of a string"},
      {"MetadataValueIsArray", R"({"__metadata__":{"k":["x"]}})", 0, "__metadata__ key 'k'"},
      {"MetadataKeyTwice", R"({"__metadata__":{"k":"1","k":"2"}})", 0,
       "the key 'k' of __metadata__ is there twice"},
      {"MetadataTwice", R"({"__metadata__":{},"__metadata__":{}})", 0,
       "the key '__metadata__' is there twice"},
      {"DeepNesting", "{\"a\":" + std::string(1'000'000, '['), 0, "does not end with"},
      {"DeepNestingClosed", "{\"a\":" + std::string(1'000'000, '[') + "}", 0, "'a' is an array"},
      {"DeepObjects", "{\"a\":{\"shape\":{\"b\":{}}}}", 0, "'a' holds an object"},
      {"ManyDimensions",
       tensor(R"("shape":[)" +
              [] {
                std::string ones = "1";
                for (int i = 0; i < 100; ++i) ones += ",1";
                return ones;
              }() +
              "]"),
       0, "'a' has over 64 dimensions"},
      {"ControlCharacterInName", R"({"a\u0007b":1})", 0, "'a\\x07b' is a number"},
      {"LongName", "{\"" + std::string(5000, 'n') + "\":1}", 0, "nnn...(5000 bytes)' is a number"},
  };
}

class SafetensorsRefusal : public ::testing::TestWithParam<Refusal> {};

TEST_P(SafetensorsRefusal, NamesTheBreach) {
  const Refusal& refusal = GetParam();
  const std::string error = parse_error(refusal.json, refusal.data_bytes);
  EXPECT_THAT(error, HasSubstr(refusal.message));
  EXPECT_LT(error.size(), 500U);
}

INSTANTIATE_TEST_SUITE_P(Hostile, SafetensorsRefusal, ::testing::ValuesIn(refusals()),
                         [](const auto& test) { return test.param.label; });

TEST(SafetensorsParse, RefusesAHeaderLongerThanTheFile) {
  EXPECT_THROW(parse_safetensors_header("{}", 9, "f"), CorruptionError);
  EXPECT_THROW(parse_safetensors_header("{}", 0, "f"), CorruptionError);
}

TEST(SafetensorsElementSize, KnowsEveryByteSizedDtype) {
  for (const char* dtype :
       {"BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"}) {
    EXPECT_EQ(safetensors_element_size(dtype), 1U) << dtype;
  }
  for (const char* dtype : {"I16", "U16", "F16", "BF16"}) {
    EXPECT_EQ(safetensors_element_size(dtype), 2U) << dtype;
  }
  for (const char* dtype : {"I32", "U32", "F32"}) {
    EXPECT_EQ(safetensors_element_size(dtype), 4U) << dtype;
  }
  for (const char* dtype : {"C64", "F64", "I64", "U64"}) {
    EXPECT_EQ(safetensors_element_size(dtype), 8U) << dtype;
  }
  for (const char* dtype : {"", "F4", "F6_E2M3", "F6_E3M2", "C128", "f32", "F32 "}) {
    EXPECT_EQ(safetensors_element_size(dtype), 0U) << dtype;
  }
}

SafetensorsEntry entry(std::string name, std::string dtype, std::vector<int64_t> shape) {
  SafetensorsEntry result;
  result.name = std::move(name);
  result.dtype = std::move(dtype);
  result.shape = std::move(shape);
  return result;
}

std::string encode_error(std::vector<SafetensorsEntry> entries) {
  SafetensorsHeader header;
  header.entries = std::move(entries);
  try {
    encode_safetensors_header(header);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(SafetensorsEncode, GoldenBytes) {
  SafetensorsHeader header;
  header.metadata = {{"format", "pt"}, {"a \"b\"", "c\\d"}};
  header.entries = {entry("mask", "BOOL", {3}), entry("w", "F32", {2, 2}), entry("b", "F32", {}),
                    entry("count", "I64", {1})};
  const std::string text = encode_safetensors_header(header);
  const std::string json = R"({"__metadata__":{"a \"b\"":"c\\d","format":"pt"},)"
                           R"("count":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)"
                           R"("b":{"dtype":"F32","shape":[],"data_offsets":[8,12]},)"
                           R"("w":{"dtype":"F32","shape":[2,2],"data_offsets":[12,28]},)"
                           R"("mask":{"dtype":"BOOL","shape":[3],"data_offsets":[28,31]}})";
  ASSERT_EQ(json.size(), 275U);
  EXPECT_EQ(text, std::string("\x38\x01\0\0\0\0\0\0", 8) + json + std::string(37, ' '));
  EXPECT_EQ(header.data_offset, 320U);
  EXPECT_EQ(header.data_bytes, 31U);
}

TEST(SafetensorsEncode, AnEmptyFileIsValid) {
  SafetensorsHeader header;
  EXPECT_EQ(encode_safetensors_header(header),
            std::string("\x38\0\0\0\0\0\0\0{}", 10) + std::string(54, ' '));
  EXPECT_EQ(header.data_bytes, 0U);
}

TEST(SafetensorsEncode, RefusesWhatTheFormatCannotSay) {
  EXPECT_THAT(encode_error({entry("a", "F32", {1}), entry("a", "U8", {1})}),
              HasSubstr("two tensors are called 'a'"));
  EXPECT_THAT(encode_error({entry("__metadata__", "F32", {1})}), HasSubstr("__metadata__"));
  EXPECT_THAT(encode_error({entry("a", "C128", {1})}), HasSubstr("'a' has dtype 'C128'"));
  EXPECT_THAT(encode_error({entry("a", "F32", {2, -1})}), HasSubstr("shape [2, -1] of tensor 'a'"));
  EXPECT_THAT(encode_error({entry("a", "F32", {int64_t{1} << 62})}), HasSubstr("not possible"));
  EXPECT_THAT(encode_error({entry("\xff", "F32", {1})}), HasSubstr("not valid UTF-8"));
  const std::vector<int64_t> huge = {INT64_MAX};
  EXPECT_THAT(
      encode_error({entry("a", "U8", huge), entry("b", "U8", huge), entry("c", "U8", huge)}),
      HasSubstr("exceed 2^64 bytes"));
}

TEST(SafetensorsEncode, RefusesAHeaderThatNoReaderAccepts) {
  EXPECT_THAT(encode_error({entry(std::string(100'000'000, 'n'), "U8", {0})}),
              HasSubstr("write the tensors to several files"));
}

std::string random_name(std::mt19937_64& random, int index) {
  static constexpr const char* kParts[] = {"layer.", "größe", "\"", "\\", "\n", "日本", " ", "0"};
  std::string name;
  for (uint64_t i = random() % 5; i > 0; --i) name += kParts[random() % std::size(kParts)];
  return name + std::to_string(index);
}

TEST(SafetensorsProperty, WhatWeWriteWeRead) {
  static constexpr const char* kDtypes[] = {"BOOL", "U8",  "BF16", "F16",
                                            "F32",  "I64", "F64",  "C64"};
  std::mt19937_64 random(3);
  for (int round = 0; round < 500; ++round) {
    SafetensorsHeader written;
    for (uint64_t i = random() % 20; i > 0; --i) {
      std::vector<int64_t> shape(random() % 4);
      for (int64_t& size : shape) size = static_cast<int64_t>(random() % 9);
      written.entries.push_back(entry(random_name(random, static_cast<int>(i)),
                                      kDtypes[random() % std::size(kDtypes)], shape));
    }
    for (uint64_t i = random() % 3; i > 0; --i) {
      written.metadata[random_name(random, static_cast<int>(i))] = random_name(random, 7);
    }
    const std::string text = encode_safetensors_header(written);
    ASSERT_EQ(text.size(), written.data_offset);
    ASSERT_EQ(text.size() % 64, 0U);
    const SafetensorsHeader read_back = parse(text.substr(8), written.data_bytes);
    ASSERT_EQ(read_back.metadata, written.metadata);
    ASSERT_EQ(read_back.data_offset, written.data_offset);
    ASSERT_EQ(read_back.data_bytes, written.data_bytes);
    ASSERT_EQ(read_back.entries.size(), written.entries.size());
    for (const SafetensorsEntry& expected : written.entries) {
      const SafetensorsEntry& actual = find(read_back, expected.name);
      ASSERT_EQ(actual.dtype, expected.dtype);
      ASSERT_EQ(actual.shape, expected.shape);
      ASSERT_EQ(actual.begin, expected.begin);
      ASSERT_EQ(actual.end, expected.end);
      ASSERT_EQ(actual.begin % safetensors_element_size(actual.dtype), 0U) << "natural alignment";
    }
  }
}

// Any change of one byte of a header is refused or gives a header that is consistent in itself.
TEST(SafetensorsProperty, OneChangedByteNeverBreaksTheReader) {
  const std::string whole = slurp(data_path("torch_adam_2"));
  const std::string json = whole.substr(8, 3112);
  std::mt19937_64 random(5);
  for (size_t at = 0; at < json.size(); ++at) {
    std::string changed = json;
    changed[at] = static_cast<char>(random());
    try {
      const SafetensorsHeader header = parse(changed, 211);
      uint64_t end = 0;
      for (const SafetensorsEntry& tensor_entry : header.entries) {
        ASSERT_EQ(tensor_entry.begin, end);
        end = tensor_entry.end;
      }
      ASSERT_EQ(end, header.data_bytes);
    } catch (const CorruptionError&) {
    }
  }
}

}  // namespace
}  // namespace tessera::io
