// Saves in the background: the values of the moment of the call whatever happens next, one outcome
// on all ranks, no message on the training communicator, nothing that grows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <future>

#include "checkpoint/background_save.h"
#include "checkpoint/verify.h"
#include "io/fault_file_system.h"
#include "tessera/error.h"
#include "unit/checkpoint_fleet.h"
#include "unit/io_temp_directory.h"

namespace tessera::checkpoint {
namespace {

using io::TempDirectory;
using testing::AllOf;
using testing::HasSubstr;
using namespace torch::optim;
using namespace std::chrono_literals;

constexpr auto kDeadline = 30s;

io::FileSystem& files() { return io::real_file_system(); }

// One tensor that is staged behind the call on every rank of three, and awkward small ones.
std::vector<ParameterSpec> model() {
  auto specs = awkward_model();
  specs.push_back({"big", {301, 128}});
  return specs;
}

const MakeOptimizer kAdam = make_optimizer<Adam>(AdamOptions(1e-2).amsgrad(true));
const MakeOptimizer kSgd = make_optimizer<SGD>(SGDOptions(1e-2));

CheckpointerOptions unsynced() { return CheckpointerOptions().save(SaveOptions().sync(false)).keep_last(0); }

std::map<std::string, std::string> contents(const std::string& path) {
  std::map<std::string, std::string> out;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream in(entry.path(), std::ios::binary);
    out[std::filesystem::relative(entry.path(), path)] =
        std::string(std::istreambuf_iterator<char>(in), {});
  }
  return out;
}

// Both runs hold the same checkpoints, byte for byte.
void expect_same_runs(const std::string& actual, const std::string& expected) {
  const auto have = contents(actual), want = contents(expected);
  ASSERT_GT(want.size(), 2U);
  for (const auto& [name, bytes] : want) {
    ASSERT_TRUE(have.contains(name)) << name;
    EXPECT_TRUE(have.at(name) == bytes) << name << " differs";
  }
  EXPECT_EQ(have.size(), want.size());
}

// Integers are written without being staged.
uint64_t integer_bytes(const SaveJob& job) {
  uint64_t bytes = 0;
  for (const PlannedFile& file : job.plan())
    for (const PlannedBox& box : file.boxes)
      if (job.context.entries()[box.entry].integer) bytes += box.bytes;
  return bytes;
}

// Holds the background thread until somebody waits to write; false where nobody ever does.
bool wait_for_writer(const StagingGate& gate) {
  const auto end = std::chrono::steady_clock::now() + kDeadline;
  while (gate.waiting() == 0) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

struct Write {
  const char* name;
  MakeOptimizer make;
  std::function<void(FleetRank&)> apply;
};

Tensor& state_tensor(FleetRank& rank, const char* key) {
  auto& state = static_cast<AdamParamState&>(
      *rank.optimizer->state().at(rank.parameter("big").leaf.unsafeGetTensorImpl()));
  return std::string(key) == "exp_avg" ? const_cast<Tensor&>(state.exp_avg())
                                       : const_cast<Tensor&>(state.max_exp_avg_sq());
}

// What may come right after the call.
std::vector<Write> writes() {
  const auto leaf = [](FleetRank& rank) { return rank.parameter("big").leaf; };
  return {
      {"Clamp", kAdam, [=](FleetRank& rank) { leaf(rank).detach().clamp_(-0.01, 0.01); }},
      {"EmaSwap", kAdam,
       [=](FleetRank& rank) {
         Tensor weight = leaf(rank).detach();
         Tensor average = torch::full_like(weight, 3);
         const Tensor held = weight.clone();
         weight.copy_(average);
         average.copy_(held);
       }},
      {"OutVariant", kAdam,
       [=](FleetRank& rank) {
         Tensor weight = leaf(rank).detach();
         at::add_out(weight, weight, weight);
       }},
      {"StockSgd", kSgd, [](FleetRank& rank) { rank.train(2, 1); }},
      {"StockAdam", kAdam, [](FleetRank& rank) { rank.train(2, 1); }},
      {"Foreach", kAdam,
       [=](FleetRank& rank) {
         at::_foreach_add_({leaf(rank).detach(), state_tensor(rank, "exp_avg")}, 1.0);
       }},
      {"MomentAlone", kAdam, [](FleetRank& rank) { state_tensor(rank, "exp_avg").mul_(2); }},
      {"MomentView", kAdam,
       [](FleetRank& rank) { state_tensor(rank, "max_exp_avg_sq").flatten().zero_(); }},
      {"FusedAdam", kAdam,
       [=](FleetRank& rank) {
         Tensor weight = leaf(rank).detach();
         at::_fused_adamw_({weight}, {torch::ones_like(weight)}, {state_tensor(rank, "exp_avg")},
                           {torch::ones_like(weight)}, {state_tensor(rank, "max_exp_avg_sq")},
                           {torch::ones({})}, 0.1, 0.9, 0.99, 0.1, 1e-8, true, false, {}, {});
       }},
      {"Replaced", kAdam,
       [=](FleetRank& rank) { state_tensor(rank, "exp_avg") = torch::zeros({3}); }},
  };
}

class CheckpointAsync : public testing::Test {
 protected:
  // Runs `body(rank, communicator, saver)` on each simulated rank.
  using Body = std::function<void(FleetRank&, comm::Communicator&, BackgroundSaver&)>;
  std::vector<std::exception_ptr> ranks(int world, const Body& body,
                                        const std::vector<io::FileSystem*>& file_systems = {},
                                        const MakeOptimizer& make = kAdam,
                                        std::chrono::milliseconds timeout = 20s) {
    return test::run_ranks(
        world,
        [&](comm::Communicator& communicator) {
          FleetRank rank(model(), communicator.rank(), world, make);
          rank.train(0, 2);
          BackgroundSaver saver(file_systems.empty()
                                    ? files()
                                    : *file_systems[static_cast<size_t>(communicator.rank())]);
          body(rank, communicator, saver);
        },
        timeout);
  }
  void expect_verified(const std::string& path) {
    const VerifyReport report = verify_checkpoint(files(), path);
    EXPECT_THAT(report.problems, testing::IsEmpty());
  }

  TempDirectory temp_;
  const std::string sync_ = temp_ / "sync";
  const std::string async_ = temp_ / "async";
};

// BL-62: the values are those of the call, whatever is written next, and the write waits.
class CheckpointAsyncWrites
    : public CheckpointAsync,
      public testing::WithParamInterface<std::tuple<size_t, StateDictKind>> {};

TEST_P(CheckpointAsyncWrites, BL62_ValuesAreThoseOfTheCall) {
  const auto& [index, kind] = GetParam();
  const Write write = writes()[index];
  const CkptSpec spec = CkptSpec().kind(kind);
  const bool waits = std::string(write.name) != "Replaced";
  expect_no_errors(ranks(
      2,
      [&](FleetRank& rank, comm::Communicator& communicator, BackgroundSaver& saver) {
        const LiveState live = rank.live(communicator);
        save_step(files(), sync_, live, spec, 2, unsynced());
        std::atomic<bool> waited = false;
        saver.before_staging([&] { waited = !waits || wait_for_writer(*saver.gate()); });
        const auto save = saver.start(async_, live, spec, 2, unsynced());
        torch::NoGradGuard no_grad;
        write.apply(rank);
        if (waits) {
          EXPECT_EQ(save->staged.wait_for(0s), std::future_status::ready);
        }
        saver.settle(communicator);
        EXPECT_TRUE(waited);
      },
      {}, write.make));
  expect_same_runs(async_, sync_);
}

std::string write_name(const testing::TestParamInfo<std::tuple<size_t, StateDictKind>>& info) {
  constexpr const char* kKinds[] = {"Sharded", "Full", "Local"};
  return std::string(writes()[std::get<0>(info.param)].name) +
         kKinds[static_cast<size_t>(std::get<1>(info.param))];
}

INSTANTIATE_TEST_SUITE_P(All, CheckpointAsyncWrites,
                         testing::Combine(testing::Range(size_t{0}, writes().size()),
                                          testing::Values(StateDictKind::kSharded,
                                                          StateDictKind::kFull,
                                                          StateDictKind::kLocal)),
                         write_name);

// A write that blocks until it is let go.
class SlowFileSystem : public io::ForwardingFileSystem {
 public:
  SlowFileSystem(io::FileSystem& base, std::shared_future<void> go)
      : ForwardingFileSystem(base), go_(std::move(go)) {}
  std::unique_ptr<io::File> open(const std::string& path, io::OpenMode mode) override {
    auto file = base_.open(path, mode);
    if (!path.ends_with(".safetensors") || mode == io::OpenMode::kRead) return file;
    return std::make_unique<SlowFile>(std::move(file), go_);
  }

 private:
  struct SlowFile : io::ForwardingFile {
    SlowFile(std::unique_ptr<io::File> base, std::shared_future<void> wait)
        : ForwardingFile(std::move(base)), go(std::move(wait)) {}
    void write_at(uint64_t offset, const void* data, size_t size) override {
      EXPECT_EQ(go.wait_for(kDeadline), std::future_status::ready);
      base_->write_at(offset, data, size);
    }
    std::shared_future<void> go;
  };
  std::shared_future<void> go_;
};

TEST_F(CheckpointAsync, BL62_TrainingGoesOnWhileASlowWriterHasNotWrittenAByte) {
  std::promise<void> go;
  SlowFileSystem slow(files(), go.get_future().share());
  std::atomic<int> trained = 0;
  expect_no_errors(ranks(
      2,
      [&](FleetRank& rank, comm::Communicator& communicator, BackgroundSaver& saver) {
        const LiveState live = rank.live(communicator);
        save_step(files(), sync_, live, {}, 2, unsynced());
        const auto save = saver.start(async_, live, {}, 2, unsynced());
        rank.train(2, 5);
        for (const NamedBuffer& buffer : rank.buffers) buffer.tensor.zero_();
        rank.generator.set_current_seed(4711);
        EXPECT_EQ(save->meter.written, 0U);
        EXPECT_EQ(save->committed.wait_for(0s), std::future_status::timeout);
        if (++trained == 2) go.set_value();
        saver.settle(communicator);
        EXPECT_EQ(save->meter.written, save->total_bytes + integer_bytes(save->job));
        EXPECT_EQ(save->staged_bytes, save->total_bytes);
      },
      {&slow, &slow}));
  expect_same_runs(async_, sync_);
}

TEST_F(CheckpointAsync, TheTrainingCommunicatorIsNotUsedAfterTheCall) {
  expect_no_errors(
      ranks(3, [&](FleetRank& rank, comm::Communicator& communicator, BackgroundSaver& saver) {
        auto& counting = static_cast<test::ThreadCommunicator&>(communicator);
        saver.start(async_, rank.live(communicator), {}, 1, unsynced())->committed.get();
        saver.settle(communicator);
        const int before = counting.exchanges();
        const auto save = saver.start(async_, rank.live(communicator), {}, 2, unsynced());
        const int called = counting.exchanges();
        EXPECT_EQ(save->committed.get(), async_ + "/step-00000002");
        EXPECT_EQ(counting.exchanges(), called);
        EXPECT_EQ(called - before, 2);  // one exchange: lengths, bytes
      }));
  expect_verified(async_ + "/step-00000001");
  expect_verified(async_ + "/step-00000002");
}

TEST_F(CheckpointAsync, BL63_ASecondSaveAndALoadWaitForTheFirst) {
  std::promise<void> go;
  SlowFileSystem slow(files(), go.get_future().share());
  std::atomic<int> started = 0;
  expect_no_errors(ranks(
      2,
      [&](FleetRank& rank, comm::Communicator& communicator, BackgroundSaver& saver) {
        const LiveState live = rank.live(communicator);
        const auto first = saver.start(async_, live, {}, 1, unsynced());
        if (++started == 2) go.set_value();
        const auto second = saver.start(async_, live, {}, 2, unsynced());
        EXPECT_EQ(first->committed.wait_for(0s), std::future_status::ready);
        saver.settle(communicator);
        const auto report = load_newest(files(), async_, live, {}, {});
        ASSERT_TRUE(report);
        EXPECT_EQ(report->step, 2);
      },
      {&slow, &slow}));
}

TEST_F(CheckpointAsync, BL63_AFailureIsTheSameOnAllRanksAndSurfacesAtTheNextCallOnce) {
  for (const StateDictKind kind : {StateDictKind::kSharded, StateDictKind::kFull}) {
    for (int broken = 0; broken < 3; ++broken) {
      TempDirectory run;
      std::vector<std::unique_ptr<io::FaultFileSystem>> disks;
      std::vector<io::FileSystem*> views;
      for (int rank = 0; rank < 3; ++rank) {
        disks.push_back(std::make_unique<io::FaultFileSystem>(files()));
        views.push_back(disks.back().get());
      }
      const std::string cause = "rank " + std::to_string(broken) + ": cannot write";
      expect_no_errors(ranks(
          3,
          [&](FleetRank& rank, comm::Communicator& communicator, BackgroundSaver& saver) {
            const LiveState live = rank.live(communicator);
            const CkptSpec spec = CkptSpec().kind(kind);
            saver.start(run.path(), live, spec, 1, unsynced());
            saver.settle(communicator);
            if (communicator.rank() == broken)
              disks[static_cast<size_t>(broken)]->fail(io::FileOperation::kWrite, 2, ENOSPC);
            const auto save = saver.start(run.path(), live, spec, 2, unsynced());
            try {
              save->committed.get();
              ADD_FAILURE() << "the save succeeded";
            } catch (const IoError& error) {
              EXPECT_THAT(error.what(), AllOf(HasSubstr(cause), HasSubstr("space")));
              EXPECT_EQ(error.error_number(), ENOSPC);
            }
            EXPECT_THROW(saver.start(run.path(), live, spec, 3, unsynced()), IoError);
            saver.start(run.path(), live, spec, 4, unsynced());
            saver.settle(communicator);
          },
          views));
      std::vector<std::string> names;
      for (const io::DirectoryEntry& entry : files().list(run.path())) names.push_back(entry.name);
      EXPECT_THAT(names, testing::ElementsAre("LATEST", "step-00000001", "step-00000004"));
      expect_verified(run / "step-00000001");
      expect_verified(run / "step-00000004");
    }
  }
}

TEST_F(CheckpointAsync, AnyRankCancelsForAllAndTheEarlierOneStaysNewest) {
  for (int canceller = 0; canceller < 2; ++canceller) {
    TempDirectory run;
    std::promise<void> go;
    SlowFileSystem slow(files(), go.get_future().share());
    expect_no_errors(ranks(
        2,
        [&](FleetRank& rank, comm::Communicator& communicator, BackgroundSaver& saver) {
          const LiveState live = rank.live(communicator);
          save_step(files(), run.path(), live, {}, 1, unsynced());
          const AsyncSave save(saver.start(run.path(), live, {}, 2, unsynced()));
          if (communicator.rank() == canceller) {
            AsyncSave(save).cancel();
            go.set_value();
          }
          EXPECT_THROW(save.committed().get(), SaveCancelled);
          EXPECT_NO_THROW(saver.settle(communicator));
          EXPECT_EQ(load_newest(files(), run.path(), live, {}, {})->step, 1);
        },
        {&slow, &slow}));
    std::vector<std::string> names;
    for (const io::DirectoryEntry& entry : files().list(run.path())) names.push_back(entry.name);
    EXPECT_THAT(names, testing::ElementsAre("LATEST", "step-00000001"));
  }
}

TEST_F(CheckpointAsync, ARankThatNeverWritesIsNamedByTheDeadline) {
  std::promise<void> go;
  SlowFileSystem slow(files(), go.get_future().share());
  const auto errors = ranks(
      3,
      [&](FleetRank& rank, comm::Communicator& communicator, BackgroundSaver& saver) {
        const auto save = saver.start(async_, rank.live(communicator), {}, 1, unsynced());
        if (communicator.rank() == 1) save->committed.wait();
        try {
          save->committed.get();
          ADD_FAILURE() << "the save succeeded";
        } catch (const TimeoutError& error) {
          EXPECT_THAT(error.what(), HasSubstr("rank 0 waited 1 s for rank 1 to write"));
          if (communicator.rank() == 0) go.set_value();
        }
      },
      {&files(), &slow, &files()}, kAdam, 1s);
  expect_no_errors(errors);
}

TEST_F(CheckpointAsync, BL83_NothingGrowsOverFiftySaves) {
  expect_no_errors(
      ranks(2, [&](FleetRank& rank, comm::Communicator& communicator, BackgroundSaver& saver) {
        const LiveState live = rank.live(communicator);
        const CheckpointerOptions options = unsynced().keep_last(2);
        saver.start(async_, live, {}, 0, options);
        saver.settle(communicator);
        const size_t staging = saver.staging_bytes();
        for (int64_t step = 1; step < 50; ++step) saver.start(async_, live, {}, step, options);
        saver.settle(communicator);
        EXPECT_EQ(saver.staging_bytes(), staging);
        EXPECT_LT(staging, size_t{4} << 20);
      }));
  std::vector<std::string> names;
  for (const io::DirectoryEntry& entry : files().list(async_)) names.push_back(entry.name);
  EXPECT_THAT(names, testing::ElementsAre("LATEST", "step-00000048", "step-00000049"));
}

TEST_F(CheckpointAsync, AnExceptionOnItsWayDoesNotWaitForOtherRanks) {
  for (int leaver = 0; leaver < 2; ++leaver) {
    TempDirectory run;
    std::promise<void> left;
    SlowFileSystem slow(files(), left.get_future().share());
    expect_no_errors(ranks(
        2,
        [&](FleetRank& rank, comm::Communicator& communicator, BackgroundSaver&) {
          const bool leaves = communicator.rank() == leaver;
          std::shared_ptr<BackgroundSave> save;
          try {
            BackgroundSaver mine(leaves ? files() : slow);
            save = mine.start(run.path(), rank.live(communicator), {}, 1, unsynced());
            if (leaves) throw CommError("a peer died");
            save->committed.wait();
          } catch (const CommError&) {
            left.set_value();
          }
          // Rank 0 leaving takes the save with it; another may have done its part before.
          if (leaves || leaver == 0) {
            EXPECT_THROW(save->committed.get(), SaveCancelled);
          }
        },
        {}, kAdam, 120s));
  }
}

// BL-63: the object is destroyed, or `main` ends, at once.
TEST_F(CheckpointAsync, BL63_LeavingAScopeCompletesTheSave) {
  expect_no_errors(ranks(3, [&](FleetRank& rank, comm::Communicator& communicator, BackgroundSaver&) {
    BackgroundSaver mine(files());
    mine.start(async_, rank.live(communicator), {}, 1, unsynced());
  }));
  expect_verified(async_ + "/step-00000001");
}

TEST_F(CheckpointAsync, BL63_AProcessMayExitAtAnyTime) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        ranks(1, [&](FleetRank& rank, comm::Communicator& communicator, BackgroundSaver& saver) {
          saver.start(async_, rank.live(communicator), {}, 1, CheckpointerOptions());
          std::exit(3);
        });
      },
      testing::ExitedWithCode(3), "");
}

}  // namespace
}  // namespace tessera::checkpoint
