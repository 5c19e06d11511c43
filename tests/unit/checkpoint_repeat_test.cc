// What a save of a run takes over from the one before: the plan of an unchanged layout, the files of
// an expired checkpoint. Both must give the same bytes as a first save.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "checkpoint/context.h"
#include "checkpoint/directory.h"
#include "checkpoint/plan_memory.h"
#include "checkpoint/recycle.h"
#include "checkpoint/run_state.h"
#include "checkpoint/verify.h"
#include "io/forwarding_file_system.h"
#include "tessera/error.h"
#include "unit/checkpoint_disk.h"
#include "unit/checkpoint_fleet.h"
#include "unit/checkpoint_sample.h"
#include "unit/io_temp_directory.h"

namespace tessera::checkpoint {
namespace {

using io::TempDirectory;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const MakeOptimizer kAdam = make_optimizer<torch::optim::Adam>(torch::optim::AdamOptions(1e-2));

io::FileSystem& files() { return io::real_file_system(); }

// The files of the data, without the manifest, which tells the save sequence.
std::map<std::string, std::string> data_files(const std::string& directory) {
  std::map<std::string, std::string> out;
  for (const io::DirectoryEntry& entry : files().list(directory))
    if (entry.name != kManifestName)
      out[entry.name] = io::slurp(io::join_path(directory, entry.name));
  return out;
}

void expect_same_data(const std::string& actual, const std::string& expected) {
  const auto have = data_files(actual), want = data_files(expected);
  ASSERT_GT(want.size(), 1U);
  EXPECT_TRUE(have == want) << actual << " differs from " << expected;
  EXPECT_THAT(verify_checkpoint(files(), actual).problems, IsEmpty());
}

int exchanges(comm::Communicator& communicator) {
  return static_cast<test::ThreadCommunicator&>(communicator).exchanges();
}

// A run with its memory, beside one save a step that knows of none.
class Repeated {
 public:
  Repeated(comm::Communicator& communicator, const TempDirectory& temp, CkptSpec spec)
      : communicator_(communicator),
        rank_(awkward_model(), communicator.rank(), communicator.world_size(), kAdam),
        root_(temp / "run"),
        alone_(temp / "alone"),
        spec_(std::move(spec)),
        run_(root_) {}

  // Returns how many exchanges the save of the run took.
  int save(int64_t step, const CheckpointerOptions& options) {
    const int before = exchanges(communicator_);
    save_step(files(), root_, rank_.live(communicator_), spec_, step, options, &run_);
    const int taken = exchanges(communicator_) - before;
    save_state(files(), rank_.live(communicator_), spec_,
               {io::join_path(alone_, step_name(step)), false}, step, {});
    return taken;
  }

  FleetRank& rank() { return rank_; }
  int64_t plans() const { return run_.plans.made(); }

 private:
  comm::Communicator& communicator_;
  FleetRank rank_;
  const std::string root_, alone_;
  const CkptSpec spec_;
  RunState run_;
};

// State of two elements looks like two rows on the ranks that have two rows, and like no rows on the
// rank that has none: only together they can tell.
void add_ambiguous_state(FleetRank& rank) {
  auto state = std::make_unique<torch::optim::AdamParamState>();
  state->step(7);
  state->exp_avg(torch::full({2}, 1.5));
  state->exp_avg_sq(torch::full({2}, 2.5));
  rank.optimizer->state()[rank.parameter("unused.weight").leaf.unsafeGetTensorImpl()] =
      std::move(state);
}

TEST(CheckpointRepeat, AKnownLayoutIsNeitherPlannedNorComparedAgain) {
  for (const auto kind : {StateDictKind::kSharded, StateDictKind::kFull, StateDictKind::kLocal}) {
    TempDirectory temp;
    expect_no_errors(test::run_ranks(3, [&](comm::Communicator& communicator) {
      Repeated run(communicator, temp, CkptSpec().kind(kind));
      const CheckpointerOptions all = CheckpointerOptions().keep_last(0);
      run.save(0, all);
      EXPECT_EQ(run.plans(), 1);
      run.rank().train(0, 1);  // the optimizer has state now
      add_ambiguous_state(run.rank());
      const int first = run.save(1, all);
      EXPECT_EQ(run.plans(), 2);
      for (int64_t step = 2; step < 5; ++step) {
        run.rank().train(step - 1, 1);
        run.rank().buffers[0].tensor += 1;
        const int repeated = run.save(step, all);
        EXPECT_EQ(run.plans(), 2);
        EXPECT_EQ(repeated, first - 2);  // lengths and bytes of one exchange
      }
      // From now on the ranks agree on the buffer: another layout of the files.
      run.rank().buffers[0].tensor.fill_(7);
      run.save(5, all);
      EXPECT_EQ(run.plans(), kind == StateDictKind::kLocal ? 2 : 3);
    }));
    for (int64_t step = 0; step <= 5; ++step)
      expect_same_data(temp / ("run/" + step_name(step)), temp / ("alone/" + step_name(step)));
  }
}

TEST(CheckpointRepeat, ADifferenceBetweenRanksIsFoundAlsoWhenTheLayoutIsKnown) {
  TempDirectory temp;
  const auto errors = test::run_ranks(3, [&](comm::Communicator& communicator) {
    Repeated run(communicator, temp, {});
    run.rank().train(0, 1);
    run.save(1, {});
    run.rank().train(1, communicator.rank() == 2 ? 2 : 1);
    run.save(2, {});
  });
  for (const auto& error : errors)
    EXPECT_THAT(test::message_of(error), testing::AllOf(HasSubstr("step"), HasSubstr("rank 2")));
}

ino_t inode(const std::string& path) {
  struct stat info {};
  EXPECT_EQ(::stat(path.c_str(), &info), 0) << path;
  return info.st_ino;
}

constexpr const char* kShard = "shard-00001-model-00001-of-00001.safetensors";

TEST(CheckpointRepeat, TheNextSaveOverwritesTheFilesOfTheExpiredOne) {
  for (const auto kind : {StateDictKind::kSharded, StateDictKind::kLocal}) {
    TempDirectory temp;
    const auto options = CheckpointerOptions().keep_last(1).recycle(true);
    std::map<int64_t, ino_t> inodes;
    expect_no_errors(test::run_ranks(3, [&](comm::Communicator& communicator) {
      Repeated run(communicator, temp, CkptSpec().kind(kind));
      for (int64_t step = 1; step <= 6; ++step) {
        run.rank().train(step - 1, 1);
        run.save(step, options);
        if (communicator.rank() != 0) continue;
        const std::string published = temp / ("run/" + step_name(step));
        expect_same_data(published, temp / ("alone/" + step_name(step)));
        inodes[step] = inode(
            io::join_path(published, kind == StateDictKind::kLocal ? "rank-00000.local" : kShard));
      }
      FleetRank loaded(awkward_model(), communicator.rank(), 3, kAdam, even_split, 3);
      load_newest(files(), temp / "run", loaded.live(communicator), CkptSpec().kind(kind), {});
      expect_same_state(loaded, run.rank());
    }));
    EXPECT_EQ(inodes[3], inodes[1]);
    EXPECT_EQ(inodes[4], inodes[2]);
    EXPECT_EQ(inodes[6], inodes[2]);
    EXPECT_THAT(children_of(files(), temp / "run"),
                ElementsAre(".lock", ".recycled-step-00000005", "LATEST", "step-00000006"));
  }
}

TEST(CheckpointRepeat, AnotherWorldSizeLeavesNoFileOfTheOldOne) {
  TempDirectory temp;
  const auto options = CheckpointerOptions().keep_last(1).recycle(true);
  for (const int world : {4, 2, 3}) {
    expect_no_errors(test::run_ranks(world, [&](comm::Communicator& communicator) {
      Repeated run(communicator, temp, {});
      for (int64_t step = world * 10; step < world * 10 + 2; ++step) {
        run.save(step, options);
        if (communicator.rank() == 0)
          expect_same_data(temp / ("run/" + step_name(step)), temp / ("alone/" + step_name(step)));
      }
    }));
  }
}

TEST(CheckpointRepeat, ACopyMadeOfHardLinksKeepsItsBytes) {
  TempDirectory temp;
  const std::string kept = temp / "kept";
  files().create_directories(kept);
  expect_no_errors(test::run_ranks(2, [&](comm::Communicator& communicator) {
    Repeated run(communicator, temp, {});
    for (int64_t step = 1; step <= 4; ++step) {
      run.rank().train(step - 1, 1);
      run.save(step, CheckpointerOptions().keep_last(1).recycle(true));
      if (step != 1 || communicator.rank() != 0) continue;
      for (const auto& entry : std::filesystem::directory_iterator(temp / "run/step-00000001"))
        std::filesystem::create_hard_link(entry.path(), kept / entry.path().filename());
    }
  }));
  expect_same_data(kept, temp / "alone/step-00000001");
}

TEST(CheckpointRepeat, OneIsKeptAndOnlyWhileItIsAskedFor) {
  TempDirectory run;
  for (uint64_t step = 1; step <= 4; ++step)
    write_sample(files(), run / step_name(static_cast<int64_t>(step)), step,
                 static_cast<int64_t>(step));
  expire(files(), run.path(), {.keep_last = 1, .recycle = true}, step_name(4));
  EXPECT_THAT(children_of(files(), run.path()), ElementsAre(".recycled-step-00000003", "step-00000004"));
  EXPECT_FALSE(claim_temporary(files(), run.path(), "x", false).recycled);
  const Claim claim = claim_temporary(files(), run.path(), "x", true);
  EXPECT_TRUE(claim.recycled);
  EXPECT_FALSE(files().exists(io::join_path(claim.path, kManifestName)));
  EXPECT_FALSE(claim_temporary(files(), run.path(), "x", true).recycled);
  files().create_directories(run / ".recycled-y");
  EXPECT_THAT(clean_leftovers(files(), run.path()), testing::Contains(HasSubstr(".recycled-y: removed")));
}

// Counts what is said ahead of a sync.
class Hints : public io::ForwardingFileSystem {
 public:
  using ForwardingFileSystem::ForwardingFileSystem;
  std::unique_ptr<io::File> open(const std::string& path, io::OpenMode mode) override {
    class Counting : public io::ForwardingFile {
     public:
      Counting(std::unique_ptr<io::File> base, Hints& owner)
          : ForwardingFile(std::move(base)), owner_(owner) {}
      void start_writeback(uint64_t offset, uint64_t size) override {
        EXPECT_EQ(offset, end_) << "a part is left out";
        end_ = offset + size;
        owner_.bytes += size;
        ForwardingFile::start_writeback(offset, size);
      }
      void sync() override {
        if (owner_.bytes > 0 && owner_.synced_at == 0) owner_.synced_at = owner_.bytes;
        ForwardingFile::sync();
      }

     private:
      Hints& owner_;
      uint64_t end_ = owner_.data_offset;
    };
    return std::make_unique<Counting>(ForwardingFileSystem::open(path, mode), *this);
  }

  uint64_t data_offset = 0;
  uint64_t bytes = 0;
  uint64_t synced_at = 0;  // of `bytes`, at the first sync after one
};

TEST(CheckpointRepeat, TheDiskBeginsBeforeTheLastByteIsThere) {
  for (const bool sync : {true, false}) {
    TempDirectory temp;
    Hints hints(files());
    expect_no_errors(test::run_ranks(1, [&](comm::Communicator& communicator) {
      FleetRank rank({{"w", {1 << 20, 5}}}, 0, 1, nullptr);
      rank.buffers.clear();
      LiveState live = rank.live(communicator);
      const CkptSpec spec = CkptSpec().with_optimizer(false).with_rng(false);
      hints.data_offset =
          plan_files(ContextBuilder::build(live, spec).entries(), spec.kind(), 0)[0].header.size();
      save_state(hints, live, spec, {temp / "c", false}, 1, SaveOptions().sync(sync));
    }));
    EXPECT_EQ(hints.synced_at, sync ? uint64_t{16} << 20 : 0);
    EXPECT_EQ(hints.bytes, sync ? uint64_t{16} << 20 : 0);
  }
}

}  // namespace
}  // namespace tessera::checkpoint
