// Any world to any other, in any form: every tensor and scalar comes back with every bit, and three
// more steps are those of the run that was not interrupted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <set>

#include "tessera/error.h"
#include "unit/checkpoint_matrix.h"
#include "unit/io_temp_directory.h"

namespace tessera::checkpoint {
namespace {

constexpr int64_t kSteps = 4;

Tensor bytes_of(const Tensor& tensor) { return tensor.contiguous().view({-1}).view(torch::kByte); }

class CheckpointMatrix : public testing::Test {
 protected:
  FleetRank make_rank(int rank, int world, const MakeOptimizer& make, bool skewed, bool fresh) {
    FleetRank made(matrix_model(), rank, world, make, skewed ? skewed_split : even_split,
                   fresh ? 3 : 0);
    made.buffers = matrix_buffers(fresh);
    return made;
  }

  // Cases that save alike share one checkpoint.
  std::string saved(const MatrixCase& test) {
    MatrixCase key;
    std::tie(key.saved, key.kind, key.optimizer, key.skewed_save) =
        std::tie(test.saved, test.kind, test.optimizer, test.skewed_save);
    const auto [found, added] =
        paths_.emplace(key.describe(), temp_ / std::to_string(paths_.size()));
    if (!added) return found->second;
    const MakeOptimizer& make = matrix_optimizers()[test.optimizer].saved;
    expect_no_errors(test::run_ranks(test.saved, [&](comm::Communicator& communicator) {
      FleetRank rank = make_rank(communicator.rank(), test.saved, make, test.skewed_save, false);
      rank.train(0, kSteps);
      LiveState live = rank.live(communicator);
      live.items["epoch"] = {[] { return ItemValue(int64_t{12}); }, [](const ItemValue&) {}};
      save_state(io::real_file_system(), live, CkptSpec().kind(test.kind), {found->second, false},
                 kSteps, SaveOptions().sync(false));
    }));
    return found->second;
  }

  void load(const MatrixCase& test, const std::string& path) {
    const MatrixOptimizer& optimizer = matrix_optimizers()[test.optimizer];
    const FleetRank& reference = unsharded(test.optimizer, kSteps);
    const FleetRank& later = unsharded(test.optimizer, kSteps + 3);
    expect_no_errors(test::run_ranks(test.loaded, [&](comm::Communicator& communicator) {
      const int mine = communicator.rank();
      FleetRank rank = make_rank(mine, test.loaded, optimizer.fresh, test.skewed_load, true);
      if (test.trained) rank.train(0, 2);
      LiveState live = rank.live(communicator);
      int64_t epoch = 0;
      live.items["epoch"] = {[] { return ItemValue(int64_t{0}); },
                             [&](const ItemValue& value) { epoch = std::get<int64_t>(value); }};
      live.factory = [] { return std::make_unique<ManyShapesState>(); };
      const LoadReport report =
          load_state(io::real_file_system(), path, live, CkptSpec().kind(test.asked), {});
      EXPECT_EQ(report.step, kSteps);
      EXPECT_EQ(report.stored_world_size, test.saved);
      EXPECT_EQ(epoch, 12);
      expect_same_state(rank, reference);
      expect_same_buffers(rank);
      expect_generator(rank, mine, test);
      rank.train(kSteps, 3);
      expect_same_state(rank, later);
    }));
  }

  void expect_same_buffers(const FleetRank& rank) {
    const auto expected = matrix_buffers(false);
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(torch::equal(bytes_of(rank.buffers[i].tensor), bytes_of(expected[i].tensor)))
          << expected[i].fqn;
  }

  // Each rank's own stream where there are as many; else a stream that no other rank has.
  void expect_generator(FleetRank& rank, int mine, const MatrixCase& test) {
    if (test.saved != test.loaded) return;
    const FleetRank original(matrix_model(), mine, test.saved, nullptr);
    EXPECT_TRUE(torch::equal(rank.generator.get_state(), original.generator.get_state()));
  }

  const FleetRank& unsharded(size_t optimizer, int64_t steps) {
    auto& slot = unsharded_[{optimizer, steps}];
    if (!slot) {
      slot = std::make_unique<FleetRank>(
          make_rank(0, 1, matrix_optimizers()[optimizer].saved, false, false));
      slot->train(0, steps);
    }
    return *slot;
  }

  void run(const std::vector<MatrixCase>& cases) {
    for (const MatrixCase& test : cases) {
      SCOPED_TRACE(test.describe());
      load(test, saved(test));
      if (HasFailure()) break;  // the rest would say the same
    }
  }

  io::TempDirectory temp_;
  std::map<std::string, std::string> paths_;
  std::map<std::pair<size_t, int64_t>, std::unique_ptr<FleetRank>> unsharded_;
};

// BL-07, BL-12, BL-16, BL-17, BL-18, BL-19, BL-20, BL-21, BL-30, BL-33
TEST_F(CheckpointMatrix, EveryPairOfFactors) {
  const std::vector<MatrixCase> cases = pairwise_matrix_cases();
  std::set<std::pair<int, int>> worlds;
  for (const MatrixCase& test : cases) worlds.emplace(test.saved, test.loaded);
  EXPECT_EQ(worlds.size(), 36);  // every N with every M
  EXPECT_GE(cases.size(), 36);
  RecordProperty("cases", static_cast<int>(cases.size()));
  std::printf("%zu cases\n", cases.size());
  run(cases);
}

// The short form takes every world, kind, asked kind and optimizer with one of the eight ways to
// cut rows and to start; TESSERA_LONG_TESTS=1 takes all.
TEST_F(CheckpointMatrix, EverythingWithEverything) {
  const bool everything = std::getenv("TESSERA_LONG_TESTS") != nullptr;
  const std::vector<MatrixCase> all = all_matrix_cases();
  ASSERT_EQ(all.size(), 6912);
  std::vector<MatrixCase> chosen;
  for (size_t i = 0; i < all.size(); ++i)
    if (everything || i % 8 == i / 8 % 8) chosen.push_back(all[i]);
  std::printf("%zu cases\n", chosen.size());
  run(chosen);
}

}  // namespace
}  // namespace tessera::checkpoint
