// Files that fail, disks that fill up, bytes that rot: every rank learns of it, names the cause,
// and the last good checkpoint stays.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "checkpoint/directory.h"
#include "checkpoint/manifest.h"
#include "checkpoint/verify.h"
#include "io/fault_file_system.h"
#include "io/recording_file_system.h"
#include "tessera/error.h"
#include "unit/checkpoint_fleet.h"
#include "unit/io_temp_directory.h"

namespace tessera::checkpoint {
namespace {

using io::TempDirectory;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

const MakeOptimizer kAdam = make_optimizer<torch::optim::Adam>(torch::optim::AdamOptions(1e-2));

io::FileSystem& files() { return io::real_file_system(); }

std::vector<std::string> children(const std::string& path) {
  std::vector<std::string> out;
  for (const io::DirectoryEntry& entry : files().list(path)) out.push_back(entry.name);
  return out;
}

// Large enough for several hash blocks a rank.
std::vector<ParameterSpec> model() { return {{"w", {64, 1024}}, {"b", {9}}, {"s", {}}}; }

class CheckpointFaults : public testing::Test {
 protected:
  // One save of a fresh rank; rank r uses file_systems[r].
  std::vector<std::exception_ptr> save(const std::vector<io::FileSystem*>& file_systems,
                                       int64_t step, const CkptSpec& spec = {}, int64_t keep = 0) {
    const int world = static_cast<int>(file_systems.size());
    return test::run_ranks(world, [&](comm::Communicator& communicator) {
      FleetRank rank(model(), communicator.rank(), world, kAdam);
      rank.train(0, step);
      save_step(*file_systems[static_cast<size_t>(communicator.rank())], run_.path(),
                rank.live(communicator), spec, step, CheckpointerOptions().keep_last(keep));
    });
  }
  // What load_newest returns on every rank; fails where ranks differ.
  std::optional<LoadReport> newest(const std::vector<io::FileSystem*>& file_systems) {
    const int world = static_cast<int>(file_systems.size());
    std::vector<std::optional<LoadReport>> reports(file_systems.size());
    errors_ = test::run_ranks(world, [&](comm::Communicator& communicator) {
      FleetRank rank(model(), communicator.rank(), world, kAdam, even_split, 3);
      FleetRank before(model(), communicator.rank(), world, kAdam, even_split, 3);
      const auto index = static_cast<size_t>(communicator.rank());
      try {
        reports[index] =
            load_newest(*file_systems[index], run_.path(), rank.live(communicator), {}, {});
      } catch (...) {
        expect_same_state(rank, before);
        throw;
      }
      if (!reports[index]) return;
      FleetRank expected(model(), communicator.rank(), world, kAdam);
      expected.train(0, reports[index]->step);
      expect_same_state(rank, expected);
    });
    for (size_t i = 1; i < reports.size(); ++i) {
      EXPECT_EQ(reports[i].has_value(), reports[0].has_value());
      if (reports[i] && reports[0]) {
        EXPECT_EQ(reports[i]->step, reports[0]->step);
      }
    }
    return reports[0];
  }
  std::vector<io::FileSystem*> real(int world) { return {static_cast<size_t>(world), &files()}; }
  void expect_all_failed(const std::vector<std::exception_ptr>& errors) {
    for (const std::exception_ptr& error : errors) {
      EXPECT_TRUE(error);
      EXPECT_EQ(test::message_of(error), test::message_of(errors[0]));
    }
  }
  void flip(const std::string& path, size_t offset) {
    std::string content = io::slurp(path);
    content.at(offset) = static_cast<char>(content.at(offset) ^ 4);
    io::spill(path, content);
  }

  TempDirectory run_;
  std::vector<std::exception_ptr> errors_;
};

// BL-48, BL-49, BL-58: each operation of each rank fails once.
TEST_F(CheckpointFaults, EveryFailingOperationOfASaveIsAnErrorOnAllRanks) {
  for (const auto kind : {StateDictKind::kSharded, StateDictKind::kFull}) {
    const CkptSpec spec = CkptSpec().kind(kind);
    TempDirectory empty;
    expect_no_errors(save(real(2), 1, spec));
    for (int victim : {0, 1}) {
      io::FaultFileSystem counted(files());
      std::vector<io::FileSystem*> used = real(2);
      used[static_cast<size_t>(victim)] = &counted;
      expect_no_errors(save(used, 2, spec));
      const int64_t operations = counted.operations();
      ASSERT_GT(operations, 3);
      files().remove_tree(run_ / "step-00000002");
      for (int64_t n = 1; n <= operations; ++n) {
        SCOPED_TRACE(c10::str("rank ", victim, ", operation ", n, " of ", operations));
        io::FaultFileSystem faulty(files());
        faulty.fail(n, EIO);
        used[static_cast<size_t>(victim)] = &faulty;
        const auto errors = save(used, 2, spec);
        if (errors[0] || errors[1]) expect_all_failed(errors);
        if (errors[0]) {
          EXPECT_THAT(test::message_of(errors[0]), HasSubstr(c10::str("rank ", victim)));
        }
        // Whatever happened, what is there is whole: step 1, or step 2.
        for (const std::string& name : children(run_.path())) {
          if (!is_step_name(name)) continue;
          EXPECT_THAT(verify_checkpoint(files(), run_ / name).problems, IsEmpty()) << name;
        }
        const auto report = newest(real(2));
        ASSERT_TRUE(report.has_value());
        // A failure after the publication (parent's sync, the hint, retention) leaves step 2.
        if (!errors[0]) {
          EXPECT_EQ(report->step, 2);
        }
        for (const std::string& name : children(run_.path()))
          if (name.starts_with("step-00000002") || name[0] == '.') {
            if (files().is_directory(run_ / name)) files().remove_tree(run_ / name);
          }
      }
    }
    for (const std::string& name : children(run_.path()))
      if (name != "LATEST" && files().is_directory(run_ / name)) files().remove_tree(run_ / name);
  }
}

TEST_F(CheckpointFaults, AFullDiskLosesNothingAndTheNextSaveCleansUp) {
  expect_no_errors(save(real(2), 1));
  for (const uint64_t space : {uint64_t{0}, uint64_t{100'000}, uint64_t{300'000}}) {
    io::FaultFileSystem full(files());
    full.limit_space(space);
    full.ignore_allocate(true);
    const auto errors = save({&files(), &full}, 2);
    expect_all_failed(errors);
    EXPECT_THAT(test::message_of(errors[0]),
                AllOf(HasSubstr("rank 1"), HasSubstr("No space left")));
    EXPECT_THAT(children(run_.path()), testing::ElementsAre("LATEST", "step-00000001"));
  }
  io::FaultFileSystem small(files());
  small.limit_space(1000);
  const auto errors = save({&small, &files()}, 2);
  expect_all_failed(errors);
  EXPECT_THAT(test::message_of(errors[0]), AllOf(HasSubstr("are free"), HasSubstr("needs")));
  expect_no_errors(save(real(2), 2));
  EXPECT_EQ(newest(real(2))->step, 2);
}

// BL-50, BL-57: falls back, says why, keeps the damaged one.
TEST_F(CheckpointFaults, ADamagedCheckpointIsSetAsideAndTheOlderOneLoads) {
  const auto damage = [&](const std::function<void(const std::string&)>& change,
                          const std::string& word) {
    expect_no_errors(save(real(3), 1));
    expect_no_errors(save(real(3), 2));
    change(run_ / "step-00000002");
    const auto report = newest(real(3));
    ASSERT_TRUE(report);
    EXPECT_EQ(report->step, 1);
    EXPECT_THAT(report->notes,
                testing::Contains(AllOf(HasSubstr("step-00000002"), HasSubstr(word))));
    EXPECT_THAT(children(run_.path()), testing::Contains("damaged-step-00000002"));
    for (const std::string& name : children(run_.path()))
      if (files().is_directory(run_ / name)) files().remove_tree(run_ / name);
  };
  const std::string shard = "/shard-00003-model-00001-of-00001.safetensors";
  damage([&](const std::string& path) { flip(path + shard, 40'000); }, "rank 2");
  damage([&](const std::string& path) { flip(path + shard, 100'000); }, "optim.state.w.exp_avg");
  damage(
      [&](const std::string& path) { io::spill(path + shard, io::slurp(path + shard).substr(1)); },
      "bytes instead of");
  damage([&](const std::string& path) { files().remove_file(path + shard); }, "missing");
  damage([&](const std::string& path) { flip(path + "/hashes.bin", 50); }, "hashes.bin");
  damage([&](const std::string& path) { flip(path + "/manifest.json", 3000); }, "seal");
  damage(
      [&](const std::string& path) {
        const std::string other = path + "/shard-00002-model-00001-of-00001.safetensors";
        const std::string a = io::slurp(path + shard), b = io::slurp(other);
        io::spill(path + shard, b);
        io::spill(other, a);
      },
      "shard-0000");
  // An incomplete directory is passed over and left where it is.
  expect_no_errors(save(real(3), 1));
  expect_no_errors(save(real(3), 2));
  files().remove_file(run_ / "step-00000002/manifest.json");
  EXPECT_EQ(newest(real(3))->step, 1);
  EXPECT_THAT(children(run_.path()), testing::Contains("step-00000002"));
  // Alone it is no reason to start over in silence.
  files().remove_tree(run_ / "step-00000001");
  newest(real(3));
  expect_all_failed(errors_);
  EXPECT_THAT(test::message_of(errors_[0]), HasSubstr("incomplete"));
}

TEST_F(CheckpointFaults, OnlyDamagedOnesAreAnErrorAndNoneIsNone) {
  EXPECT_FALSE(newest(real(2)));
  expect_no_errors(errors_);
  expect_no_errors(save(real(2), 1));
  flip(run_ / "step-00000001/shard-00001-model-00001-of-00001.safetensors", 100'000);
  // Every start refuses, not only the first: nothing is set aside that would make the run look new.
  for (int start = 0; start < 2; ++start) {
    newest(real(2));
    expect_all_failed(errors_);
    EXPECT_THAT(test::message_of(errors_[0]), AllOf(HasSubstr("no checkpoint of this run is whole"),
                                                    HasSubstr("step-00000001 is damaged")));
    EXPECT_THAT(children(run_.path()), testing::Contains("step-00000001"));
  }
}

// BL-58
TEST_F(CheckpointFaults, AFileThatOneRankCannotOpenIsNamedOnAll) {
  expect_no_errors(save(real(3), 1));
  io::FaultFileSystem faulty(files());
  faulty.fail(io::FileOperation::kOpen, 1, EACCES);
  newest({&files(), &files(), &faulty});
  expect_all_failed(errors_);
  EXPECT_THAT(test::message_of(errors_[0]),
              AllOf(HasSubstr("rank 2"), HasSubstr("ermission denied")));
  EXPECT_THROW(std::rethrow_exception(errors_[0]), IoError);
  EXPECT_THAT(children(run_.path()), testing::Contains("step-00000001"));  // not damaged, not moved
  // And every other operation of a load, on any rank: the same error on all, nothing changed.
  for (int victim : {0, 2}) {
    io::FaultFileSystem counted(files());
    auto used = real(3);
    used[static_cast<size_t>(victim)] = &counted;
    ASSERT_EQ(newest(used)->step, 1);
    for (int64_t n = 1; n <= counted.operations(); ++n) {
      SCOPED_TRACE(n);
      io::FaultFileSystem one(files());
      one.fail(n, EIO);
      used[static_cast<size_t>(victim)] = &one;
      newest(used);
      if (errors_[0]) expect_all_failed(errors_);
      for (const std::string& name : children(run_.path()))
        if (name.starts_with("damaged-")) files().rename(run_ / name, run_ / "step-00000001");
    }
  }
}

// BL-55, and directories that hosts do not share.
TEST_F(CheckpointFaults, ADirectoryThatAnotherRankCannotSeeIsNamed) {
  struct Blind : io::ForwardingFileSystem {
    using ForwardingFileSystem::ForwardingFileSystem;
    bool is_directory(const std::string& path) override {
      return --blind_looks < 0 && ForwardingFileSystem::is_directory(path);
    }
    int blind_looks = 3;
  };
  Blind late(files());  // visible after a while: no error
  expect_no_errors(save({&files(), &late}, 1));
  Blind never(files());
  never.blind_looks = INT_MAX;
  const auto errors = test::run_ranks(
      2,
      [&](comm::Communicator& communicator) {
        FleetRank rank(model(), communicator.rank(), 2, kAdam);
        io::FileSystem& used = communicator.rank() == 0 ? files() : never;
        save_state(used, rank.live(communicator), {}, {run_ / "c", false}, 1, {});
      },
      std::chrono::seconds(4));
  expect_all_failed(errors);
  EXPECT_THAT(
      test::message_of(errors[0]),
      AllOf(HasSubstr("rank 1"), HasSubstr("not visible on host"), HasSubstr("all hosts share")));
  EXPECT_THAT(children(run_.path()), testing::ElementsAre("LATEST", "step-00000001"));
}

// BL-59: a rank that saves alone fails by its deadline and leaves nothing that looks like a
// checkpoint.
TEST_F(CheckpointFaults, ARankThatNeverComesEndsTheSave) {
  for (const int absent : {0, 1}) {
    const auto errors = test::run_ranks(
        2,
        [&](comm::Communicator& communicator) {
          if (communicator.rank() == absent) return;
          FleetRank rank(model(), communicator.rank(), 2, kAdam);
          save_state(files(), rank.live(communicator), {}, {run_ / "c", false}, 1, {});
        },
        std::chrono::milliseconds(300));
    EXPECT_THROW(std::rethrow_exception(errors[static_cast<size_t>(1 - absent)]), TimeoutError);
  }
  EXPECT_THAT(children(run_.path()), IsEmpty());
}

// BL-53
TEST_F(CheckpointFaults, RanksWithDifferentPathsOrStepsAreNamed) {
  const auto errors = test::run_ranks(2, [&](comm::Communicator& communicator) {
    FleetRank rank(model(), communicator.rank(), 2, kAdam);
    save_state(files(), rank.live(communicator), {},
               {run_ / c10::str("d", communicator.rank()), false}, 1, {});
  });
  expect_all_failed(errors);
  EXPECT_THAT(test::message_of(errors[0]),
              AllOf(HasSubstr("rank 1 saves to"), HasSubstr("/d1"), HasSubstr("/d0")));
  const auto steps = test::run_ranks(2, [&](comm::Communicator& communicator) {
    FleetRank rank(model(), communicator.rank(), 2, kAdam);
    save_state(files(), rank.live(communicator), {}, {run_ / "d", false}, communicator.rank(), {});
  });
  EXPECT_THAT(test::message_of(steps[1]), HasSubstr("rank 1 saves step 1, rank 0 step 0"));
  const auto loads = test::run_ranks(2, [&](comm::Communicator& communicator) {
    FleetRank rank(model(), communicator.rank(), 2, kAdam);
    save_state(files(), rank.live(communicator), {}, {run_ / "e", false}, 1, {});
    load_state(files(), communicator.rank() == 0 ? run_ / "e" : run_ / "f", rank.live(communicator),
               {}, {});
  });
  EXPECT_THAT(test::message_of(loads[0]), AllOf(HasSubstr("/f"), HasSubstr("same path")));
  EXPECT_THAT(test::message_of(loads[1]), AllOf(HasSubstr("/f"), HasSubstr("same path")));
  EXPECT_THAT(children(run_.path()), testing::ElementsAre("e"));
}

TEST_F(CheckpointFaults, BadPathsGetOneClearMessage) {
  io::spill(run_ / "file", "x");
  files().create_directories(run_ / "nothing");
  const auto load = [&](const std::string& path) {
    const auto errors = test::run_ranks(1, [&](comm::Communicator& communicator) {
      FleetRank rank(model(), 0, 1, kAdam);
      load_state(files(), path, rank.live(communicator), {}, {});
    });
    return test::message_of(errors[0]);
  };
  EXPECT_THAT(load(run_ / "absent"), HasSubstr("does not exist"));
  EXPECT_THAT(load(run_ / "file"), HasSubstr("not a directory"));
  EXPECT_THAT(load(run_ / "nothing"), HasSubstr("not a checkpoint directory"));
  const auto errors = test::run_ranks(1, [&](comm::Communicator& communicator) {
    FleetRank rank(model(), 0, 1, kAdam);
    save_state(files(), rank.live(communicator), {}, {run_ / "nothing", false}, 1, {});
  });
  EXPECT_THAT(test::message_of(errors[0]), HasSubstr("exists already"));
}

// BL-54, BL-51, BL-52: two jobs save the same step into one root at once.
TEST_F(CheckpointFaults, TwoJobsInOneDirectoryBothLandWhole) {
  std::thread other([&] { expect_no_errors(save(real(2), 1)); });
  expect_no_errors(save(real(3), 1));
  other.join();
  size_t found = 0;
  for (const std::string& name : children(run_.path())) {
    if (!is_step_name(name)) continue;
    ++found;
    EXPECT_THAT(verify_checkpoint(files(), run_ / name).problems, IsEmpty()) << name;
  }
  EXPECT_EQ(found, 2U);
}

TEST_F(CheckpointFaults, RetentionKeepsTheNewestAndTheHintFollows) {
  for (const int64_t step : {1, 2, 3, 4}) expect_no_errors(save(real(2), step, {}, 2));
  EXPECT_THAT(children(run_.path()),
              testing::ElementsAre("LATEST", "step-00000003", "step-00000004"));
  EXPECT_EQ(io::slurp(run_ / "LATEST"), "step-00000004\n");
  // A branch: step 2 again, after going back. It is the newest by save sequence.
  expect_no_errors(save(real(2), 2, {}, 2));
  EXPECT_EQ(newest(real(2))->step, 2);
  EXPECT_THAT(children(run_.path()),
              testing::ElementsAre("LATEST", "step-00000002", "step-00000004"));
}

// A load reads what its rows need and not more than a block at each end.
TEST_F(CheckpointFaults, ALoadReadsOnlyWhatItsRowsNeed) {
  expect_no_errors(save(real(2), 1));
  const auto manifest = read_manifest(files(), run_ / "step-00000001");
  for (int world : {1, 2, 3, 4}) {
    std::vector<std::unique_ptr<io::RecordingFileSystem>> recorders;
    std::vector<io::FileSystem*> used;
    for (int rank = 0; rank < world; ++rank) {
      recorders.push_back(std::make_unique<io::RecordingFileSystem>(files()));
      used.push_back(recorders.back().get());
    }
    ASSERT_TRUE(newest(used));
    uint64_t data = 0;
    for (const auto& recorder : recorders)
      for (const io::FileAccess& access : recorder->reads())
        if (access.path.ends_with(".safetensors")) data += access.size;
    const uint64_t needed = 3 * 64 * 1024 * 4;  // w, exp_avg, exp_avg_sq
    EXPECT_GE(data, needed);
    // Two edges a tensor and rank, and the small tensors on every rank.
    EXPECT_LE(data, needed + static_cast<uint64_t>(world) * (3 * 2 * 65536 + 8192));
  }
}

}  // namespace
}  // namespace tessera::checkpoint
