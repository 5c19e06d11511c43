#include "checkpoint/directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/inspect.h"
#include "checkpoint/run_lock.h"
#include "checkpoint/verify.h"
#include "tessera/error.h"
#include "unit/checkpoint_sample.h"
#include "unit/io_temp_directory.h"

namespace tessera::checkpoint {
namespace {

using io::TempDirectory;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

io::FileSystem& files() { return io::real_file_system(); }

std::vector<std::string> names(const RunListing& listing) {
  std::vector<std::string> out;
  for (const ListedCheckpoint& listed : listing.checkpoints) out.push_back(listed.name);
  return out;
}

std::vector<std::string> children(const std::string& path) {
  std::vector<std::string> out;
  for (const io::DirectoryEntry& entry : files().list(path)) out.push_back(entry.name);
  return out;
}

TEST(CheckpointDirectory, OrderIsBySaveSequenceNotByName) {  // BL-56
  TempDirectory run;
  uint64_t sequence = 0;
  for (int64_t step : {900, 1000, 9000, 10000})
    write_sample(files(), run / step_name(step), ++sequence, step);
  write_sample(files(), run / "step-00000900.1", ++sequence, 900);  // a branch, saved last
  EXPECT_THAT(names(list_run(files(), run.path())),
              ElementsAre("step-00000900.1", "step-00010000", "step-00009000", "step-00001000",
                          "step-00000900"));
  EXPECT_EQ(list_run(files(), run.path()).highest_sequence, 5U);
  EXPECT_THAT(expire(files(), run.path(), Retention{2}, "step-00000900.1"),
              ElementsAre("step-00009000", "step-00001000", "step-00000900"));
  EXPECT_THAT(children(run.path()), ElementsAre("step-00000900.1", "step-00010000"));
  EXPECT_THAT(expire(files(), run.path(), Retention{0}, ""), IsEmpty());
}

TEST(CheckpointDirectory, KeepEveryAndPinnedOnesStay) {
  TempDirectory run;
  uint64_t sequence = 0;
  for (int64_t step = 10; step <= 90; step += 10)
    write_sample(files(), run / step_name(step), ++sequence, step);
  io::spill(run / "step-00000050.pinned", "");
  const Retention retention{.keep_last = 2, .keep_every = 30};
  EXPECT_THAT(expire(files(), run.path(), retention, "step-00000090"),
              ElementsAre("step-00000070", "step-00000040", "step-00000020", "step-00000010"));
  EXPECT_THAT(names(list_run(files(), run.path())),
              ElementsAre("step-00000090", "step-00000080", "step-00000060", "step-00000050",
                          "step-00000030"));
  EXPECT_THAT(expire(files(), run.path(), retention, "step-00000090"), IsEmpty());
}

// BL-54: two jobs, one directory.
TEST(CheckpointDirectory, BL54_OneJobAtATimeHoldsTheLock) {
  TempDirectory run;
  RunLock second(run.path());
  {
    RunLock first(run.path());
    first.acquire();
    first.acquire();
    try {
      second.acquire();
      ADD_FAILURE() << "two jobs hold it";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("process " + std::to_string(::getpid())));
      EXPECT_THAT(error.what(), HasSubstr("directory of its own"));
    }
  }
  EXPECT_NO_THROW(second.acquire());
  EXPECT_THAT(list_run(files(), run.path()).skipped, IsEmpty());
}

TEST(CheckpointDirectory, IncompleteAndForeignDirectoriesAreSkippedWithAReason) {  // BL-50
  TempDirectory run;
  write_sample(files(), run / "step-00000010", 1, 10);
  files().create_directories(run / "step-00000020");
  write_sample(files(), run / "step-00000030", 2, 30);
  io::spill(run / "step-00000030/manifest.json", "{\"seal\":");
  files().create_directories(run / "notes");
  write_sample(files(), run / "damaged-step-00000040", 9, 40);
  const RunListing listing = list_run(files(), run.path());
  EXPECT_THAT(names(listing), ElementsAre("step-00000010"));
  EXPECT_THAT(listing.skipped,
              ElementsAre(HasSubstr("step-00000020: incomplete"), HasSubstr("step-00000030")));
  EXPECT_EQ(listing.highest_sequence, 9U);
  EXPECT_THAT(names(list_run(files(), run / "absent")), IsEmpty());
  EXPECT_EQ(resolve_checkpoint(files(), run.path()), run / "step-00000010");
  EXPECT_EQ(resolve_checkpoint(files(), run / "step-00000010"), run / "step-00000010");
  EXPECT_THROW(resolve_checkpoint(files(), run / "notes"), UsageError);
  EXPECT_THROW(resolve_checkpoint(files(), run / "absent"), UsageError);
}

TEST(CheckpointDirectory, ADirectoryIsNeverReused) {  // BL-51, BL-54
  TempDirectory run;
  for (const char* expected : {"step-00000001", "step-00000001.1", "step-00000001.2"}) {
    const std::string temporary = claim_temporary(files(), run.path(), "step-00000001").path;
    io::spill(temporary + "/x", expected);
    EXPECT_EQ(publish(files(), temporary, run.path(), "step-00000001", true, true), expected);
    EXPECT_EQ(io::slurp(run / (std::string(expected) + "/x")), expected);
  }
  const std::string temporary = claim_temporary(files(), run.path(), "step-00000001").path;
  EXPECT_THROW(publish(files(), temporary, run.path(), "step-00000001", false, true), IoError);
  EXPECT_NE(claim_temporary(files(), run.path(), "step-00000001").path, temporary);
}

TEST(CheckpointDirectory, LeftoversOfDeadProcessesAreCleanedOthersLeft) {
  TempDirectory run;
  const std::string mine = claim_temporary(files(), run.path(), "step-00000001").path;
  const std::string name = mine.substr(mine.rfind('/') + 1);
  const std::string pid = std::to_string(::getpid());
  const auto of_process = [&](pid_t other) {
    std::string changed = name;
    changed.replace(changed.rfind("-" + pid + "-") + 1, pid.size(), std::to_string(other));
    return changed;
  };
  const pid_t dead = ::fork();
  if (dead == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(dead, nullptr, 0), dead);
  // Process 1 lives for ever; another host's cannot be asked.
  const std::vector<std::string> stay = {".other", name, of_process(1), ".saving-x-elsewhere-77-0"};
  const std::vector<std::string> go = {of_process(dead), ".deleting-step-00000003"};
  for (const auto* list : {&stay, &go})
    for (const std::string& child : *list) files().create_directories(run / child);
  EXPECT_EQ(clean_leftovers(files(), run.path()).size(), 5U);
  EXPECT_THAT(children(run.path()), testing::UnorderedElementsAreArray(stay));
}

TEST(CheckpointDirectory, SetAsideKeepsEverything) {
  TempDirectory run;
  write_sample(files(), run / "step-00000001");
  EXPECT_EQ(set_aside(files(), run.path(), "step-00000001"), "damaged-step-00000001");
  write_sample(files(), run / "step-00000001");
  EXPECT_EQ(set_aside(files(), run.path(), "step-00000001"), "damaged-step-00000001.1");
  EXPECT_EQ(children(run / "damaged-step-00000001").size(), 4U);
}

TEST(CheckpointDirectory, LatestIsRewritten) {
  TempDirectory run;
  write_latest_hint(files(), run.path(), "step-00000001");
  write_latest_hint(files(), run.path(), "step-00000002");
  EXPECT_EQ(io::slurp(run / "LATEST"), "step-00000002\n");
  EXPECT_THAT(children(run.path()), ElementsAre("LATEST"));
}

class CheckpointVerify : public testing::Test {
 protected:
  CheckpointVerify() { write_sample(files(), directory_); }
  std::vector<std::string> problems() { return verify_checkpoint(files(), directory_).problems; }
  // Changes one byte of a file.
  void flip(const std::string& name, size_t offset) {
    std::string content = io::slurp(directory_ + "/" + name);
    content.at(offset) = static_cast<char>(content.at(offset) ^ 0x10);
    io::spill(directory_ + "/" + name, content);
  }
  TempDirectory temp_;
  const std::string directory_ = temp_ / "c";
  const std::string first_ = "shard-00001.safetensors";
  const std::string second_ = "shard-00002.safetensors";
};

TEST_F(CheckpointVerify, AWholeOneIsClean) {
  const VerifyReport report = verify_checkpoint(files(), directory_);
  EXPECT_THAT(report.problems, IsEmpty());
  EXPECT_EQ(report.files, 2U);
  EXPECT_EQ(report.tensors, 2U);
  EXPECT_EQ(report.blocks, 14U);
}

TEST_F(CheckpointVerify, AFlippedBitNamesFileTensorAndBytes) {  // BL-57
  const Manifest manifest = read_manifest(files(), directory_);
  const uint64_t at = manifest.tensors[0].boxes[0].offset + 70000;
  flip(first_, at);
  EXPECT_THAT(problems(),
              ElementsAre(testing::AllOf(HasSubstr(first_), HasSubstr("model.w"),
                                         HasSubstr(std::to_string(at - 70000 + 65536)))));
}

TEST_F(CheckpointVerify, EveryPartIsCovered) {
  const Manifest manifest = read_manifest(files(), directory_);
  for (size_t i = 0; i < manifest.files[1].data_offset; i += 5) {
    flip(second_, i);
    EXPECT_FALSE(problems().empty()) << "header byte " << i;
    flip(second_, i);
  }
  for (const std::string& name : {std::string(kManifestName), std::string(kHashesName)}) {
    const size_t size = io::slurp(directory_ + "/" + name).size();
    for (size_t i = 0; i < size; i += name == kHashesName ? 3 : 29) {
      flip(name, i);
      EXPECT_FALSE(problems().empty()) << name << " byte " << i;
      flip(name, i);
    }
  }
  EXPECT_THAT(problems(), IsEmpty());
}

TEST_F(CheckpointVerify, MissingTruncatedSwappedAndStrayFiles) {
  const std::string content = io::slurp(directory_ + "/" + first_);
  io::spill(directory_ + "/" + first_, content.substr(0, content.size() - 1));
  EXPECT_THAT(problems(),
              ElementsAre(testing::AllOf(HasSubstr(first_), HasSubstr("bytes instead of"))));
  files().remove_file(directory_ + "/" + first_);
  EXPECT_THAT(problems(), ElementsAre(HasSubstr(first_ + ": missing")));
  io::spill(directory_ + "/" + first_, content);
  io::spill(directory_ + "/shard-00009.safetensors", "x");
  EXPECT_THAT(problems(), ElementsAre(HasSubstr("shard-00009.safetensors: stray")));
  files().remove_file(directory_ + "/shard-00009.safetensors");
  files().remove_file(directory_ + "/" + kHashesName);
  EXPECT_THAT(problems(), ElementsAre(HasSubstr("hashes.bin: missing")));
  EXPECT_THAT(verify_checkpoint(files(), temp_.path()).problems,
              ElementsAre(HasSubstr("no manifest.json")));
}

TEST_F(CheckpointVerify, AFileOfAnotherSaveIsFound) {
  write_sample(files(), temp_ / "other");
  const Manifest manifest = read_manifest(files(), directory_);
  std::string content = io::slurp(temp_ / ("other/" + first_));
  for (size_t i = manifest.files[0].data_offset; i < content.size(); i += 4) content[i] = 1;
  io::spill(directory_ + "/" + first_, content);
  EXPECT_EQ(problems().size(), 10U);  // 9 blocks and the integer that disagrees
}

TEST_F(CheckpointVerify, AnIntegerThatDisagreesWithItsF32) {
  Manifest manifest = read_manifest(files(), directory_);
  manifest.tensors[1].integer = 8;
  io::spill(directory_ + "/manifest.json", encode_manifest(manifest));
  EXPECT_THAT(problems(),
              ElementsAre(HasSubstr("'optim.state.w.step' is 7 here and 8 in the manifest")));
}

TEST_F(CheckpointVerify, InspectSaysWhatIsThere) {
  Manifest manifest = read_manifest(files(), directory_);
  const std::string text = inspect_text(manifest, directory_);
  for (const char* part :
       {"kind sharded, step 7", "world size 2", "model.w", "F32", "[5, 40000]",
        "rank 0: rows 0-3, rank 1: rows 3-5", "= 7", "items.epoch = 3", "781.3 KiB"})
    EXPECT_THAT(text, HasSubstr(part));
  const auto json = nlohmann::json::parse(inspect_json(manifest, directory_));
  EXPECT_EQ(json["step"], 7);
  EXPECT_EQ(json["tensors"][0]["bytes"], 800000);
  EXPECT_EQ(json["tensors"][0]["boxes"][1]["rows"], (std::vector<int>{3, 5}));
  EXPECT_EQ(json["scalars"]["items"]["epoch"], 3);
  // Layers that differ only in their number share a line.
  manifest.tensors[0].key = "model.block.0.w";
  manifest.tensors.push_back(manifest.tensors[0]);
  manifest.tensors.back().key = "model.block.1.w";
  EXPECT_THAT(inspect_text(manifest, directory_), HasSubstr("model.block.{0-1}.w"));
}

}  // namespace
}  // namespace tessera::checkpoint
