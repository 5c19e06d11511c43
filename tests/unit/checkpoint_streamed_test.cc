// Directories that only rank 0 sees.
#include <filesystem>
#include <fstream>

#include "io/fault_file_system.h"
#include "unit/checkpoint_cases.h"

namespace tessera::checkpoint {
namespace {

class CheckpointStreamed : public CheckpointCases {};
INSTANTIATE_TEST_SUITE_P(Worlds, CheckpointStreamed, testing::Values(1, 2, 3, 4));

std::map<std::string, std::string> contents(const std::string& path) {
  std::map<std::string, std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    std::ifstream in(entry.path(), std::ios::binary);
    out[entry.path().filename()] = std::string(std::istreambuf_iterator<char>(in), {});
  }
  return out;
}

// Large enough for several pieces of a rank.
std::vector<ParameterSpec> model() {
  auto specs = awkward_model();
  specs.push_back({"big", {1301, 512}});
  return specs;
}

// Every call of a rank that has no such directory fails the test.
class NoFileSystem : public io::FaultFileSystem {
 public:
  explicit NoFileSystem(io::FileSystem& base) : FaultFileSystem(base) { fail_from(1, EIO); }
};

TEST_P(CheckpointStreamed, OnlyRank0TouchesTheDirectoryAndTheFilesAreTheSame) {
  for (const StateDictKind kind :
       {StateDictKind::kSharded, StateDictKind::kFull, StateDictKind::kLocal}) {
    TempDirectory temp;
    const CkptSpec spec = CkptSpec().kind(kind);
    ranks([&](comm::Communicator& communicator) {
      FleetRank rank = rank_of(communicator, kAdam, 0, model());
      rank.train(0, 2);
      const LiveState live = rank.live(communicator);
      save_state(files(), live, spec, {temp / "a/c", false}, 2, {});
      NoFileSystem none(files());
      save_state(communicator.rank() == 0 ? files() : none, live, spec, {temp / "b/c", false}, 2,
                 SaveOptions().through_rank0(true));
      EXPECT_EQ(none.operations(), 0);
    });
    const auto want = contents(temp / "a/c"), have = contents(temp / "b/c");
    EXPECT_GE(want.size(), 3U);
    EXPECT_EQ(have.size(), want.size());
    for (const auto& [name, bytes] : want) EXPECT_TRUE(have.at(name) == bytes) << name;
  }
}

TEST_P(CheckpointStreamed, AFullDiskOfRank0IsTheErrorOfAllAndNothingIsLeft) {
  TempDirectory temp;
  ranks([&](comm::Communicator& communicator) {
    FleetRank rank = rank_of(communicator, kAdam, 0, model());
    rank.train(0, 2);
    // With the first file of the last rank, or with a write in the middle of it.
    for (const auto operation : {io::FileOperation::kOpen, io::FileOperation::kWrite}) {
      io::FaultFileSystem disk(files());
      const bool first = operation == io::FileOperation::kOpen;
      disk.fail(operation, first ? communicator.world_size() : 6, ENOSPC);
      try {
        save_state(disk, rank.live(communicator), {}, {temp / "c", false}, 2,
                   SaveOptions().through_rank0(true));
        ADD_FAILURE() << "saved";
      } catch (const IoError& error) {
        EXPECT_EQ(error.error_number(), ENOSPC);
        EXPECT_THAT(error.what(), HasSubstr(communicator.world_size() == 1 ? "failed" : "rank 0: "));
      }
    }
    save_state(files(), rank.live(communicator), {}, {temp / "c", false}, 2,
               SaveOptions().through_rank0(true));
  });
  std::vector<std::string> names;
  for (const io::DirectoryEntry& entry : files().list(temp.path())) names.push_back(entry.name);
  EXPECT_THAT(names, testing::ElementsAre("c"));
}

}  // namespace
}  // namespace tessera::checkpoint
