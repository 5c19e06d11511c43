// BL-48, BL-49, BL-50, BL-51: a run of saves in which each single file operation fails in turn, or
// is the last one before the power goes. Whatever happens, all ranks say the same, the newest
// checkpoint that is there loads in full, and the next save clears away what was left.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checkpoint/directory.h"
#include "checkpoint/verify.h"
#include "io/fault_file_system.h"
#include "tessera/error.h"
#include "unit/checkpoint_disk.h"
#include "unit/checkpoint_fleet.h"
#include "util/log.h"

namespace tessera::checkpoint {
namespace {

using io::Survivors;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char* kRoot = "run";
const MakeOptimizer kAdam = make_optimizer<torch::optim::Adam>(torch::optim::AdamOptions(1e-2));

std::vector<ParameterSpec> model() {
  return {{"w", {5, 3}}, {"a.bias", {7}}, {"s", {}}, {"codes", {4, 3}, torch::kByte, false}};
}

// A state is known by a number, which is also an item of it: 1 and 2 are there before, 3 and 4 are
// saved under the same step while operations fail, 5 is what is saved after that.
constexpr int64_t step_of(int64_t number) { return number >= 4 ? number - 1 : number; }

struct Fleet {
  explicit Fleet(int world_size) : world(world_size) {
    for (int64_t number = 1; number <= 5; ++number)
      for (int rank = 0; rank < world; ++rank) {
        ranks[number].push_back(std::make_unique<FleetRank>(model(), rank, world, kAdam, even_split,
                                                            number == 4 ? 5.0 : 0.0));
        ranks[number].back()->train(0, step_of(number));
      }
  }

  LiveState live(int64_t number, comm::Communicator& communicator) const {
    LiveState state =
        ranks.at(number)[static_cast<size_t>(communicator.rank())]->live(communicator);
    state.items["number"] = {[number] { return ItemValue(number); }, [](const ItemValue&) {}};
    return state;
  }

  const int world;
  std::map<int64_t, std::vector<std::unique_ptr<FleetRank>>> ranks;
};

std::string dead_pid() {
  static const std::string pid = [] {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(0);
    ::waitpid(child, nullptr, 0);
    return std::to_string(child);
  }();
  return pid;
}

// Two saves of one step with retention; the messages of each rank, by save.
using Outcomes = std::vector<std::vector<std::string>>;

class CrashRun {
 public:
  CrashRun(const Fleet& fleet, const CkptSpec& spec, io::CrashFileSystem& base)
      : fleet_(fleet), spec_(spec) {
    copy_tree(base, disk, kRoot);
    disk.crash(Survivors::kEverything);
  }

  Outcomes save_twice() {
    Outcomes outcomes(2, std::vector<std::string>(static_cast<size_t>(fleet_.world)));
    test::run_ranks(fleet_.world, [&](comm::Communicator& communicator) {
      for (const int64_t number : {3, 4}) {
        std::string& outcome =
            outcomes[static_cast<size_t>(number - 3)][static_cast<size_t>(communicator.rank())];
        try {
          save_step(faults, kRoot, fleet_.live(number, communicator), spec_, step_of(number),
                    CheckpointerOptions().keep_last(2));
        } catch (const Error& error) {
          outcome = error.what();
        }
      }
    });
    for (const auto& outcome : outcomes)
      for (const std::string& message : outcome) {
        EXPECT_EQ(message, outcome[0]) << "ranks differ";
        EXPECT_THAT(message, Not(HasSubstr("did not arrive")));
      }
    return outcomes;
  }

  void check(const Outcomes& outcomes) {
    int64_t at_least = 2;
    for (const int64_t number : {3, 4})
      if (outcomes[static_cast<size_t>(number - 3)][0].empty()) at_least = number;
    const RunListing listing = list_run(disk, kRoot);
    for (const ListedCheckpoint& listed : listing.checkpoints)
      EXPECT_THAT(verify_checkpoint(disk, io::join_path(kRoot, listed.name)).problems, IsEmpty())
          << listed.name;
    ASSERT_FALSE(listing.checkpoints.empty());
    load(at_least, listing.checkpoints[0].name);
  }

  // A new process: what the old one left is told, and gone after the next save.
  void save_again() {
    std::vector<std::string> leftovers;
    for (const std::string& name : children_of(disk, kRoot))
      if (name[0] == '.' && disk.is_directory(io::join_path(kRoot, name)))
        leftovers.push_back(bury(name));
    if (!leftovers.empty()) testing::internal::CaptureStderr();
    expect_no_errors(test::run_ranks(fleet_.world, [&](comm::Communicator& communicator) {
      save_step(disk, kRoot, fleet_.live(5, communicator), spec_, step_of(5),
                CheckpointerOptions().keep_last(2));
    }));
    if (!leftovers.empty()) {
      const std::string told = testing::internal::GetCapturedStderr();
      for (const std::string& name : leftovers) EXPECT_THAT(told, HasSubstr(name + ": removed"));
    }
    cleaned += leftovers.size();
    const std::vector<std::string> names = children_of(disk, kRoot);
    EXPECT_THAT(names, Each(Not(testing::StartsWith("."))));
    EXPECT_EQ(names.size(), 3U) << "two checkpoints and LATEST";
    load(5, step_name(step_of(5)));
  }

  io::CrashFileSystem disk;
  io::FaultFileSystem faults{disk};
  size_t cleaned = 0;

 private:
  // The process that left it has died since.
  std::string bury(const std::string& name) {
    const std::string pid = "-" + std::to_string(::getpid()) + "-";
    const size_t at = name.rfind(pid);
    if (at == std::string::npos) return name;
    std::string buried = name;
    buried.replace(at, pid.size(), "-" + dead_pid() + "-");
    disk.rename(io::join_path(kRoot, name), io::join_path(kRoot, buried));
    return buried;
  }

  void load(int64_t at_least, const std::string& newest) {
    const auto errors = test::run_ranks(fleet_.world, [&](comm::Communicator& communicator) {
      FleetRank rank(model(), communicator.rank(), fleet_.world, kAdam, even_split, 3);
      LiveState state = rank.live(communicator);
      int64_t number = 0;
      state.items["number"] = {[] { return ItemValue(int64_t{0}); },
                               [&](const ItemValue& value) { number = std::get<int64_t>(value); }};
      const auto report = load_newest(disk, kRoot, state, spec_, {});
      ASSERT_TRUE(report);
      EXPECT_EQ(report->path, io::join_path(kRoot, newest));
      EXPECT_GE(number, at_least);
      EXPECT_EQ(report->step, step_of(number));
      expect_same_state(rank, *fleet_.ranks.at(number)[static_cast<size_t>(communicator.rank())]);
    });
    expect_no_errors(errors);
  }

  const Fleet& fleet_;
  const CkptSpec& spec_;
};

class CheckpointCrash : public testing::TestWithParam<std::tuple<StateDictKind, int>> {
 protected:
  CheckpointCrash()
      : spec_(CkptSpec().kind(std::get<0>(GetParam()))), fleet_(std::get<1>(GetParam())) {
    log::set_level(log::Level::kWarning);
    for (const int64_t number : {1, 2})
      expect_no_errors(test::run_ranks(fleet_.world, [&](comm::Communicator& communicator) {
        save_step(base_, kRoot, fleet_.live(number, communicator), spec_, step_of(number), {});
      }));
    CrashRun whole(fleet_, spec_, base_);
    for (const auto& outcome : whole.save_twice()) EXPECT_THAT(outcome, Each(IsEmpty()));
    operations_ = whole.faults.operations();
    whole.check({{""}, {""}});
    whole.save_again();
  }

  // Every operation in the long form and for two ranks that share files; else one in `stride`, which
  // has no divisor in common with the numbers of failures and of survivors.
  int64_t stride() const {
    if (is_long_run()) return 1;
    if (fleet_.world != 2) return 11;
    return spec_.kind() == StateDictKind::kFull ? 1 : 5;
  }

  // Warnings of ten thousand failed saves help nobody; stderr goes back when the test ends.
  class Quiet {
   public:
    Quiet() { testing::internal::CaptureStderr(); }
    ~Quiet() { testing::internal::GetCapturedStderr(); }
  };

  CkptSpec spec_;
  Fleet fleet_;
  io::CrashFileSystem base_;
  int64_t operations_ = 0;
};

struct Failure {
  const char* what;
  int error_number;
  double written;  // share of the bytes of a write that fails
};

TEST_P(CheckpointCrash, BL49_EveryFailingOperationLeavesTheLastGoodOne) {
  constexpr Failure kFailures[] = {{"ENOSPC", ENOSPC, 0},        {"EIO", EIO, 0},
                                   {"EDQUOT", EDQUOT, 0},        {"EINTR", EINTR, 0},
                                   {"short write", ENOSPC, 0.5}, {"torn write", EIO, 0.9}};
  const size_t failures = std::size(kFailures);
  int64_t runs = 0, failed = 0;
  for (int64_t n = 1; n <= operations_ && !HasFailure(); n += stride()) {
    for (size_t i = 0; i < (is_long_run() ? failures : 1); ++i) {
      const Failure& failure = kFailures[(static_cast<size_t>(n) + i) % failures];
      SCOPED_TRACE(c10::str("operation ", n, " of ", operations_, ": ", failure.what));
      CrashRun run(fleet_, spec_, base_);
      run.faults.tear_writes(failure.written);
      run.faults.fail(n, failure.error_number);
      Outcomes outcomes;
      {
        const Quiet quiet;
        outcomes = run.save_twice();
      }
      // The one failure is over: the save after it goes through.
      EXPECT_TRUE(outcomes[0][0].empty() || outcomes[1][0].empty()) << outcomes[1][0];
      run.check(outcomes);
      run.save_again();
      ++runs;
      failed += outcomes[0][0].empty() && outcomes[1][0].empty() ? 0 : 1;
    }
  }
  EXPECT_GT(failed, runs / 3);
  std::printf("%ld operations, %ld runs, a save failed in %ld\n", operations_, runs, failed);
}

TEST_P(CheckpointCrash, BL48_BL51_PowerLossAfterEveryOperation) {
  constexpr Survivors kSurvivors[] = {Survivors::kSome, Survivors::kNothing, Survivors::kNames,
                                      Survivors::kEverything};
  const uint64_t tries = is_long_run() ? 12 : 1;
  int64_t runs = 0;
  size_t cleaned = 0;
  for (int64_t n = 1; n <= operations_ + 1 && !HasFailure(); n += stride()) {
    for (uint64_t i = 0; i < tries; ++i) {
      const auto survivors = kSurvivors[(static_cast<size_t>(n) + i) % std::size(kSurvivors)];
      SCOPED_TRACE(c10::str("operation ", n, " of ", operations_, ", survivors ",
                            static_cast<int>(survivors), ", try ", i));
      CrashRun run(fleet_, spec_, base_);
      run.faults.tear_writes(static_cast<double>(n % 3) / 2);
      run.faults.fail_from(n, EIO);
      Outcomes outcomes;
      {
        const Quiet quiet;
        outcomes = run.save_twice();
      }
      run.disk.crash(survivors, i * 1000 + static_cast<uint64_t>(n));
      run.check(outcomes);
      run.save_again();
      ++runs;
      cleaned += run.cleaned;
    }
  }
  EXPECT_GT(cleaned, 0U);
  std::printf("%ld operations, %ld runs, %zu leftovers cleaned\n", operations_, runs, cleaned);
}

std::string world_name(const testing::TestParamInfo<std::tuple<StateDictKind, int>>& test) {
  constexpr const char* kNames[] = {"Sharded", "Full", "Local"};
  return c10::str(kNames[static_cast<size_t>(std::get<0>(test.param))], std::get<1>(test.param));
}

INSTANTIATE_TEST_SUITE_P(Worlds, CheckpointCrash,
                         testing::Combine(testing::Values(StateDictKind::kSharded,
                                                          StateDictKind::kFull,
                                                          StateDictKind::kLocal),
                                          testing::Values(1, 2, 3, 4)),
                         world_name);

}  // namespace
}  // namespace tessera::checkpoint
