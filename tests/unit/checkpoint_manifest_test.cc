#include "checkpoint/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <random>

#include "checkpoint/box_reader.h"
#include "checkpoint/state_keys.h"
#include "checkpoint/verify.h"
#include "io/recording_file_system.h"
#include "tessera/error.h"
#include "unit/checkpoint_sample.h"
#include "unit/io_temp_directory.h"

namespace tessera::checkpoint {
namespace {

using io::TempDirectory;
using testing::HasSubstr;

Manifest sample() {
  TempDirectory temp;
  return write_sample(io::real_file_system(), temp / "c");
}

// What parse_manifest says about a sealed manifest that was changed before it was sealed.
std::string complaint(const std::function<void(Manifest&)>& change) {
  Manifest manifest = sample();
  change(manifest);
  try {
    parse_manifest(encode_manifest(manifest), "m");
  } catch (const CorruptionError& error) {
    return error.what();
  }
  return "accepted";
}

// A sealed text.
std::string sealed(const std::string& body) {
  return "{\"seal\":\"" + hex64(io::hash_bytes(body.data(), body.size())) + "\",\n" + body;
}

TEST(CheckpointManifest, RoundTrip) {
  const Manifest written = sample();
  const Manifest read = parse_manifest(encode_manifest(written), "m");
  EXPECT_EQ(encode_manifest(read).size(), encode_manifest(written).size());
  EXPECT_EQ(read.head.save_sequence, 1U);
  EXPECT_EQ(read.head.step, 7);
  EXPECT_EQ(read.head.world_size, 2);
  ASSERT_EQ(read.tensors.size(), 2U);
  EXPECT_EQ(read.tensors[0].shape, (std::vector<int64_t>{5, 40000}));
  EXPECT_EQ(read.tensors[0].boxes[1].row_begin, 3);
  EXPECT_EQ(read.tensors[0].boxes[1].bytes, 2U * 40000 * 4);
  EXPECT_EQ(read.tensors[1].integer, 7);
  EXPECT_EQ(read.tensors[1].parameter, "w");
  // Blocks: 480000 bytes -> 8, 320000 -> 5, 4 -> 1.
  EXPECT_EQ(read.block_count, 14U);
  EXPECT_EQ(read.tensors[0].boxes[1].first_block, 8U);
  EXPECT_EQ(read.tensors[1].boxes[0].first_block, 13U);
  EXPECT_EQ(read.find("model.w"), &read.tensors[0]);
  EXPECT_EQ(read.find("model.v"), nullptr);
}

TEST(CheckpointManifest, KeysOfAllKinds) {  // BL-47
  for (const std::string& key :
       {std::string("a\nb\"\\"), std::string("../../etc/passwd"), std::string(300, 'x'),
        std::string("schl\xc3\xbcssel"), std::string("a/b")}) {
    Manifest manifest = sample();
    manifest.tensors[0].key = key;
    const Manifest read = parse_manifest(encode_manifest(manifest), "m");
    EXPECT_EQ(read.tensors[0].key, key);
  }
}

TEST(CheckpointManifest, HeadFromFirstBytes) {
  const std::string text = encode_manifest(sample());
  const ManifestHead head = parse_manifest_head(text.substr(0, 400), "m");
  EXPECT_EQ(head.step, 7);
  EXPECT_EQ(head.kind, StoredKind::kSharded);
  EXPECT_THROW(parse_manifest_head(text.substr(0, 60), "m"), CorruptionError);
}

TEST(CheckpointManifest, EveryFlippedBitIsFound) {
  const std::string text = encode_manifest(sample());
  for (size_t i = 0; i < text.size(); ++i) {
    std::string damaged = text;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    EXPECT_THROW(parse_manifest(damaged, "m"), CorruptionError) << i;
  }
  for (size_t size : {size_t{0}, size_t{10}, text.size() / 2, text.size() - 1})
    EXPECT_THROW(parse_manifest(text.substr(0, size), "m"), CorruptionError) << size;
}

TEST(CheckpointManifest, ContradictionsAreNamed) {
  EXPECT_THAT(complaint([](Manifest& m) { m.files[0].name = "../x"; }),
              HasSubstr("not a plain file name"));
  EXPECT_THAT(complaint([](Manifest& m) { m.files[0].name = ".hidden"; }),
              HasSubstr("not a plain file name"));
  EXPECT_THAT(complaint([](Manifest& m) { m.files[1].name = m.files[0].name; }),
              HasSubstr("listed twice"));
  EXPECT_THAT(complaint([](Manifest& m) { m.files[1].name = kManifestName; }),
              HasSubstr("listed twice"));
  EXPECT_THAT(complaint([](Manifest& m) { m.files[0].data_offset = m.files[0].bytes + 1; }),
              HasSubstr("shorter than its header"));
  EXPECT_THAT(complaint([](Manifest& m) { m.tensors[1].key = "model.w"; }),
              HasSubstr("occurs twice"));
  EXPECT_THAT(complaint([](Manifest& m) { m.tensors[0].dtype = "F33"; }),
              HasSubstr("unknown dtype"));
  EXPECT_THAT(complaint([](Manifest& m) {
                m.tensors[0].shape = {INT64_MAX, INT64_MAX};
              }),
              HasSubstr("too large"));
  EXPECT_THAT(complaint([](Manifest& m) {
                m.tensors[0].shape = {int64_t{1} << 40, int64_t{1} << 40, 0};
              }),
              HasSubstr("too large"));
  EXPECT_THAT(complaint([](Manifest& m) {
                m.tensors[0].shape = {6, 40000};
              }),
              HasSubstr("lacks rows 5 to 6"));
  EXPECT_THAT(complaint([](Manifest& m) {
                m.tensors[0].shape = {4, 40000};
              }),
              HasSubstr("beyond its last row"));
  EXPECT_THAT(complaint([](Manifest& m) { m.tensors[0].boxes.pop_back(); }),
              HasSubstr("lacks rows 3 to 5"));
  EXPECT_THAT(complaint([](Manifest& m) { m.tensors[0].boxes.push_back(m.tensors[0].boxes[0]); }),
              HasSubstr("twice"));
  EXPECT_THAT(complaint([](Manifest& m) { m.tensors[0].boxes[0].bytes += 4; }),
              HasSubstr("length"));
  EXPECT_THAT(complaint([](Manifest& m) { m.tensors[0].boxes[0].file = 2; }),
              HasSubstr("not listed"));
  EXPECT_THAT(complaint([](Manifest& m) { m.tensors[0].boxes[1].offset += 4; }),
              HasSubstr("outside of the file"));
  EXPECT_THAT(complaint([](Manifest& m) { m.tensors[0].boxes[0].offset = 0; }),
              HasSubstr("outside of the file"));
  EXPECT_THAT(complaint([](Manifest& m) { m.tensors[0].boxes[0].rank = 2; }),
              HasSubstr("beyond the world size"));
  EXPECT_THAT(complaint([](Manifest& m) { m.tensors[0].integer = 3; }),
              HasSubstr("not a 0-dim F32"));
  EXPECT_THAT(complaint([](Manifest& m) { m.tensors[1].placement = StoredPlacement::kPerRank; }),
              HasSubstr("1 boxes instead of 2"));
  EXPECT_THAT(complaint([](Manifest& m) { m.tensors[1].state_key.clear(); }),
              HasSubstr("only one of"));
  EXPECT_THAT(complaint([](Manifest& m) { m.block_count = 3; }), HasSubstr("3 block hashes"));
  EXPECT_THAT(complaint([](Manifest& m) {
                m.files[0].data_offset = m.files[0].bytes = uint64_t{1} << 40;
              }),
              HasSubstr("over the format's limit"));
  EXPECT_THAT(complaint([](Manifest& m) {
                m.tensors.push_back(m.tensors[0]);
                m.tensors[2].key = "model.copy";
              }),
              HasSubstr("'model.w' and 'model.copy' share bytes"));
  EXPECT_THAT(complaint([](Manifest& m) {
                m.scalars_json = "{\"a\":" + std::string(200, '[') + std::string(200, ']') + "}";
              }),
              HasSubstr("nested deeper"));
  EXPECT_THAT(complaint([](Manifest& m) {
                m.aliases = {{"a", "b"}, {"b", "c"}};
              }),
              HasSubstr("another alias"));
}

TEST(CheckpointManifest, HostileTextIsRefused) {
  for (const std::string& body :
       {std::string("}"), std::string("\"head\":3}"), std::string("\"head\":{}}"),
        "\"head\":" + std::string(100000, '['), std::string("\"head\":{\"format\":\"x\"}}"),
        std::string("\"head\":{\"format\":\"tessera-checkpoint\",\"version\":1e300}}")})
    EXPECT_THROW(parse_manifest(sealed(body), "m"), CorruptionError) << body.substr(0, 40);
  std::string newer = encode_manifest(sample());
  newer.replace(newer.find("\"version\":1"), 11, "\"version\":2");
  EXPECT_THROW(parse_manifest(sealed(newer.substr(newer.find('\n') + 1)), "m"), LayoutError);
}

// Sealed again after a random change, as an enemy would: accepted or refused, never worse.
TEST(CheckpointManifest, RandomChangesUnderAValidSeal) {
  const std::string text = encode_manifest(sample());
  const std::string body = text.substr(text.find('\n') + 1);
  std::mt19937 random(7);
  size_t refused = 0;
  constexpr size_t kTries = 3000;
  for (size_t i = 0; i < kTries; ++i) {
    std::string changed = body;
    for (uint32_t changes = random() % 3 + 1; changes > 0; --changes) {
      const size_t at = random() % changed.size();
      switch (random() % 4) {
        case 0:
          changed[at] = static_cast<char>(random());
          break;
        case 1:
          changed[at] = "0123456789-,[]{}\"e."[random() % 19];
          break;
        case 2:
          changed.erase(at, random() % 20);
          break;
        default:
          changed.insert(at, changed.substr(random() % changed.size(), random() % 30));
          break;
      }
    }
    try {
      const Manifest manifest = parse_manifest(sealed(changed), "m");
      for (const StoredTensor& tensor : manifest.tensors)
        for (const StoredBox& box : tensor.boxes)
          ASSERT_LE(box.offset + box.bytes, manifest.files.at(static_cast<size_t>(box.file)).bytes);
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, kTries / 2);
}

TEST(CheckpointBoxReader, ReadsOnlyTheBlocksOfTheWantedRows) {
  TempDirectory temp;
  const Manifest manifest = write_sample(io::real_file_system(), temp / "c");
  io::RecordingFileSystem recording(io::real_file_system());
  const auto hashes = read_hashes(recording, temp / "c", manifest);
  recording.clear();
  BoxReader reader(recording, temp / "c", manifest, hashes);
  std::vector<float> rows(2 * 40000);
  reader.read({{&manifest.tensors[0], {2, 4}, 0, rows.data()}});
  for (size_t i = 0; i < rows.size(); ++i)
    ASSERT_EQ(rows[i], static_cast<float>(2 * 40000 + i)) << i;
  // Row 2 of box 0 is bytes 320000..480000: blocks 4 to 7, from 262144; row 3 is 0..160000 of box
  // 1: blocks 0 to 2, 196608 bytes. The headers are verified too.
  const uint64_t headers = manifest.files[0].data_offset + manifest.files[1].data_offset;
  EXPECT_EQ(recording.bytes_read(), (480000U - 262144U) + 196608U + headers);
  EXPECT_EQ(reader.bytes_read(), recording.bytes_read());
  recording.clear();
  BoxReader unverified(recording, temp / "c", manifest, {});
  unverified.read({{&manifest.tensors[0], {2, 4}, 0, rows.data()}});
  EXPECT_EQ(recording.bytes_read(), 320000U);
}

// BL-57: nothing is taken from a safetensors header, but a damaged one is a damaged file.
TEST(CheckpointBoxReader, AFlippedBitOfAHeaderIsFound) {
  TempDirectory temp;
  const Manifest manifest = write_sample(io::real_file_system(), temp / "c");
  const auto hashes = read_hashes(io::real_file_system(), temp / "c", manifest);
  const std::string path = temp / ("c/" + manifest.files[1].name);
  const std::string whole = io::slurp(path);
  std::vector<float> row(40000);
  const auto read = [&](const std::vector<uint64_t>& verified) {
    BoxReader(io::real_file_system(), temp / "c", manifest, verified)
        .read({{&manifest.tensors[0], {4, 5}, 0, row.data()}});
  };
  for (size_t bit = 0; bit < manifest.files[1].data_offset * 8; bit += 3) {
    std::string damaged = whole;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    io::spill(path, damaged);
    try {
      read(hashes);
      ADD_FAILURE() << "bit " << bit;
    } catch (const CorruptionError& error) {
      EXPECT_THAT(error.what(), testing::AllOf(HasSubstr(manifest.files[1].name),
                                               HasSubstr("bytes 0 to"), HasSubstr("header")));
    }
    EXPECT_NO_THROW(read({}));
  }
}

TEST(CheckpointBoxReader, NothingOutsideOfTheDirectoryIsRead) {
  io::FileSystem& files = io::real_file_system();
  TempDirectory temp;
  const Manifest manifest = write_sample(files, temp / "c");
  std::vector<float> row(40000);
  const auto message = [&] {
    try {
      read_manifest(files, temp / "c");
      BoxReader(files, temp / "c", manifest, read_hashes(files, temp / "c", manifest))
          .read({{&manifest.tensors[0], {4, 5}, 0, row.data()}});
      return std::string("read");
    } catch (const CorruptionError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(message(), "read");
  for (const std::string& name :
       {manifest.files[1].name, std::string(kHashesName), std::string(kManifestName)}) {
    const std::string path = temp / ("c/" + name);
    std::filesystem::rename(path, temp / "elsewhere");
    std::filesystem::create_symlink(temp / "elsewhere", path);
    EXPECT_THAT(message(), testing::AllOf(HasSubstr(name), HasSubstr("symbolic link")));
    EXPECT_THAT(verify_checkpoint(files, temp / "c").problems,
                testing::Contains(HasSubstr("symbolic link")));
    std::filesystem::remove(path);
    std::filesystem::create_directory(path);
    EXPECT_THAT(message(), testing::AllOf(HasSubstr(name), HasSubstr("not a regular file")));
    std::filesystem::remove(path);
    std::filesystem::rename(temp / "elsewhere", path);
  }
  EXPECT_EQ(message(), "read");
}

TEST(CheckpointStateKeys, AMissingKeyIsFoundByComparison) {  // B15
  using Keys = std::map<std::string, bool>;
  const Keys whole = {{"step", true}, {"exp_avg", false}};
  const Keys no_step = {{"exp_avg", false}};
  EXPECT_TRUE(missing_state_keys({{"a", 0, whole}, {"b", 0, whole}}).empty());
  EXPECT_EQ(missing_state_keys({{"a", 0, whole}, {"b", 0, no_step}}).size(), 1U);
  EXPECT_THAT(missing_state_keys({{"a", 0, whole}, {"b", 0, no_step}})[0],
              testing::AllOf(HasSubstr("'b'"), HasSubstr("'step'")));
  // Alone in its group: the other groups tell.
  EXPECT_EQ(missing_state_keys({{"a", 0, whole}, {"b", 1, no_step}}).size(), 1U);
  // amsgrad in one group only is no fault.
  Keys amsgrad = whole;
  amsgrad["max_exp_avg_sq"] = false;
  EXPECT_TRUE(missing_state_keys({{"a", 0, whole}, {"b", 1, amsgrad}}).empty());
}

}  // namespace
}  // namespace tessera::checkpoint
