// Directories that several ranks share: other paths, late entries, skewed clocks, one rank's error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <future>

#include "checkpoint/directory.h"
#include "checkpoint/verify.h"
#include "io/forwarding_file_system.h"
#include "tessera/error.h"
#include "unit/checkpoint_disk.h"
#include "unit/checkpoint_fleet.h"
#include "unit/io_temp_directory.h"

namespace tessera::checkpoint {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const MakeOptimizer kAdam = make_optimizer<torch::optim::Adam>(torch::optim::AdamOptions(1e-2));

io::FileSystem& files() { return io::real_file_system(); }

FleetRank rank_of(comm::Communicator& communicator, int64_t steps, double offset = 0) {
  FleetRank rank(awkward_model(), communicator.rank(), communicator.world_size(), kAdam, even_split,
                 offset);
  rank.train(0, steps);
  return rank;
}

void expect_all(const std::vector<std::exception_ptr>& errors,
                const testing::Matcher<std::string>& message) {
  for (const std::exception_ptr& error : errors) EXPECT_THAT(test::message_of(error), message);
}

TEST(CheckpointStore, BL53_ARankWithAnotherPathEndsTheSaveBeforeItWrites) {
  io::TempDirectory temp;
  const auto root = [&](comm::Communicator& communicator) {
    return temp / (communicator.rank() == 2 ? "clock-12-01" : "clock-12-00");
  };
  expect_all(test::run_ranks(3,
                             [&](comm::Communicator& communicator) {
                               FleetRank rank = rank_of(communicator, 1);
                               save_step(files(), root(communicator), rank.live(communicator), {},
                                         1, {});
                             }),
             AllOf(HasSubstr("rank 2"), HasSubstr("clock-12-01"), HasSubstr("clock-12-00")));
  // Rank 0's directory of the run was made with its claim, in the exchange that found the mismatch;
  // the claim is gone, and the other rank made nothing.
  for (const std::string& name : children_of(files(), temp.path())) {
    EXPECT_EQ(name, "clock-12-00");
    EXPECT_THAT(children_of(files(), temp / name), IsEmpty());
  }
  expect_all(test::run_ranks(3,
                             [&](comm::Communicator& communicator) {
                               FleetRank rank = rank_of(communicator, 1);
                               load_newest(files(), root(communicator), rank.live(communicator), {},
                                           {});
                             }),
             AllOf(HasSubstr("rank 2"), HasSubstr("clock-12-01"), HasSubstr("clock-12-00")));
}

// On a shared file system a rank sees what another one made only after a while: the first looks at
// each directory find nothing.
class LateFileSystem : public io::ForwardingFileSystem {
 public:
  using ForwardingFileSystem::ForwardingFileSystem;
  bool is_directory(const std::string& path) override {
    return ++looks_[path] > 4 && ForwardingFileSystem::is_directory(path);
  }
  std::vector<io::DirectoryEntry> list(const std::string&) override {
    ADD_FAILURE() << "no rank but 0 decides by its own listing";
    return {};
  }

 private:
  std::map<std::string, int> looks_;
};

TEST(CheckpointStore, BL55_EntriesThatAppearLateAreWaitedFor) {
  for (const auto kind : {StateDictKind::kSharded, StateDictKind::kFull, StateDictKind::kLocal}) {
    const CkptSpec spec = CkptSpec().kind(kind);
    io::TempDirectory temp;
    expect_no_errors(test::run_ranks(3, [&](comm::Communicator& communicator) {
      LateFileSystem late(files());
      io::FileSystem& used = communicator.rank() == 0 ? files() : late;
      FleetRank rank = rank_of(communicator, 2);
      save_step(used, temp / "run", rank.live(communicator), spec, 2, {});
      FleetRank loaded = rank_of(communicator, 0, 3);
      const auto report = load_newest(used, temp / "run", loaded.live(communicator), spec, {});
      ASSERT_TRUE(report);
      EXPECT_EQ(report->step, 2);
      expect_same_state(loaded, rank);
    }));
    EXPECT_THAT(verify_checkpoint(files(), temp / "run/step-00000002").problems, IsEmpty());
  }
}

TEST(CheckpointStore, BL56_NeitherNamesAsTextNorClocksDecideWhatIsNewest) {
  io::TempDirectory temp;
  const auto now = std::filesystem::file_time_type::clock::now();
  int hours = 0;
  for (const int64_t step : {900, 1000, 9000, 10000}) {
    std::string published;
    expect_no_errors(test::run_ranks(2, [&](comm::Communicator& communicator) {
      FleetRank rank = rank_of(communicator, step / 100);
      const std::string path = save_step(files(), temp.path(), rank.live(communicator), {}, step,
                                         CheckpointerOptions().keep_last(2));
      if (communicator.rank() == 0) published = path;
    }));
    // Each host's clock is behind the one before.
    std::filesystem::last_write_time(published, now - std::chrono::hours(++hours));
    EXPECT_TRUE(files().exists(published));
  }
  EXPECT_THAT(children_of(files(), temp.path()),
              ElementsAre("LATEST", "step-00009000", "step-00010000"));
  expect_no_errors(test::run_ranks(2, [&](comm::Communicator& communicator) {
    FleetRank rank = rank_of(communicator, 0, 3);
    EXPECT_EQ(load_newest(files(), temp.path(), rank.live(communicator), {}, {})->step, 10000);
    expect_same_state(rank, rank_of(communicator, 100));
  }));
}

// Files of one rank that cannot be opened, while the other ranks' reads take until that is over.
class Denied : public io::ForwardingFileSystem {
 public:
  Denied(io::FileSystem& base, std::promise<void>& happened)
      : ForwardingFileSystem(base), happened_(happened) {}
  std::unique_ptr<io::File> open(const std::string& path, io::OpenMode mode) override {
    if (!path.ends_with(".safetensors")) return ForwardingFileSystem::open(path, mode);
    happened_.set_value();
    throw IoError("cannot open " + path + ": Permission denied", EACCES);
  }

 private:
  std::promise<void>& happened_;
};

class Slow : public io::ForwardingFileSystem {
 public:
  Slow(io::FileSystem& base, std::shared_future<void> until)
      : ForwardingFileSystem(base), until_(std::move(until)) {}
  std::unique_ptr<io::File> open(const std::string& path, io::OpenMode mode) override {
    if (path.ends_with(".safetensors")) until_.wait();
    return ForwardingFileSystem::open(path, mode);
  }

 private:
  std::shared_future<void> until_;
};

TEST(CheckpointStore, BL58_OneRanksReadErrorReachesAllWhileOthersStillRead) {
  io::TempDirectory temp;
  expect_no_errors(test::run_ranks(4, [&](comm::Communicator& communicator) {
    FleetRank rank = rank_of(communicator, 1);
    save_step(files(), temp.path(), rank.live(communicator), {}, 1, {});
  }));
  std::promise<void> happened;
  const std::shared_future<void> until = happened.get_future().share();
  const auto errors = test::run_ranks(4, [&](comm::Communicator& communicator) {
    Denied denied(files(), happened);
    Slow slow(files(), until);
    io::FileSystem& used = communicator.rank() == 2 ? static_cast<io::FileSystem&>(denied) : slow;
    FleetRank rank = rank_of(communicator, 0, 3);
    try {
      load_newest(used, temp.path(), rank.live(communicator), {}, {});
    } catch (...) {
      expect_same_state(rank, rank_of(communicator, 0, 3));
      throw;
    }
  });
  expect_all(errors, AllOf(HasSubstr("rank 2"), HasSubstr("Permission denied")));
  for (const std::exception_ptr& error : errors)
    EXPECT_THROW(std::rethrow_exception(error), IoError);
  // A permission is no damage: nothing was set aside.
  EXPECT_THAT(children_of(files(), temp.path()), ElementsAre("LATEST", "step-00000001"));
}

}  // namespace
}  // namespace tessera::checkpoint
