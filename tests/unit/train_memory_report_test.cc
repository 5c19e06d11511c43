#include "train/memory_report.h"

#include <gtest/gtest.h>

namespace tessera::train {
namespace {

MemoryModel adam(std::vector<int64_t> units, int world_size) {
  MemoryModel model;
  model.unit_numel = std::move(units);
  model.world_size = world_size;
  return model;
}

TEST(FormulaBytes, UnwrappedAdamIsSixteenBytesAParameter) {
  MemoryModel model = adam({600, 400}, 1);
  model.sharded = false;
  EXPECT_EQ(formula_bytes(model), 16 * 1000);
}

TEST(FormulaBytes, ShardedAdamIsAShareAndThreeUnits) {
  EXPECT_EQ(formula_bytes(adam({100, 600, 300}, 4)), 16 * 1000 / 4 + 4 * (600 + 300) + 4 * 600);
}

TEST(FormulaBytes, SharedMappingHoldsAllParametersInsteadOfGatheredUnits) {
  MemoryModel model = adam({100, 600, 300}, 4);
  model.shared_parameters = true;
  EXPECT_EQ(formula_bytes(model), 4 * 1000 + 12 * 1000 / 4 + 4 * 600);
}

TEST(FormulaBytes, FollowsElementSizeAndStates) {
  MemoryModel model = adam({1000}, 2);
  model.element_bytes = 8;
  model.state_tensors = 0;
  EXPECT_EQ(formula_bytes(model), 8 * (2 * 500 + 1000 + 1000));
}

TEST(ResidentBytes, PeakIsAtLeastTheCurrentSize) {
  EXPECT_GT(resident_bytes(), 0);
  EXPECT_GE(peak_resident_bytes(), resident_bytes() / 2);
}

TEST(Median, IsTheMiddleValue) {
  EXPECT_EQ(median({}), 0);
  EXPECT_EQ(median({3}), 3);
  EXPECT_EQ(median({5, 1, 3}), 3);
  EXPECT_EQ(median({4, 1, 2, 3}), 2);
}

TEST(WarmUpSteps, LeavesAtLeastOneStep) {
  EXPECT_EQ(warm_up_steps(0), 0);
  EXPECT_EQ(warm_up_steps(1), 0);
  EXPECT_EQ(warm_up_steps(2), 1);
  EXPECT_EQ(warm_up_steps(10), 2);
  EXPECT_EQ(warm_up_steps(100), 10);
}

}  // namespace
}  // namespace tessera::train
