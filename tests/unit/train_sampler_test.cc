#include "train/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tessera/error.h>

#include <algorithm>
#include <set>

namespace tessera::train {
namespace {

TEST(SampleOrder, EveryEpochIsAPermutation) {
  for (const int64_t count : {1, 2, 3, 5, 16, 17, 103, 1000}) {
    const SampleOrder order(7, count);
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      std::set<int64_t> seen;
      for (const SampleRef& sample : order.slice(epoch * count, (epoch + 1) * count)) {
        EXPECT_GE(sample.index, 0);
        EXPECT_LT(sample.index, count);
        seen.insert(sample.index);
      }
      EXPECT_EQ(static_cast<int64_t>(seen.size()), count)
          << "count " << count << " epoch " << epoch;
    }
  }
}

std::vector<int64_t> indices(const SampleOrder& order, int64_t begin, int64_t end) {
  std::vector<int64_t> result;
  for (const SampleRef& sample : order.slice(begin, end)) result.push_back(sample.index);
  return result;
}

TEST(SampleOrder, EpochsAndSeedsDiffer) {
  const SampleOrder order(7, 100);
  EXPECT_NE(indices(order, 0, 100), indices(order, 100, 200));
  EXPECT_NE(indices(order, 0, 100), indices(SampleOrder(8, 100), 0, 100));
  EXPECT_EQ(indices(order, 0, 200), indices(SampleOrder(7, 100), 0, 200));
}

TEST(SampleOrder, IsNotNearlySorted) {
  const std::vector<int64_t> order = indices(SampleOrder(1, 1000), 0, 1000);
  int ascents = 0;
  for (size_t i = 1; i < order.size(); ++i) ascents += order[i] > order[i - 1] ? 1 : 0;
  EXPECT_GT(ascents, 400);
  EXPECT_LT(ascents, 600);
}

TEST(SampleOrder, StaysTheSameForEver) {
  // A stored position means these samples; changing the permutation breaks every stored run.
  EXPECT_EQ(indices(SampleOrder(1, 10), 0, 10), indices(SampleOrder(1, 10), 0, 10));
  EXPECT_THAT(indices(SampleOrder(1, 10), 0, 20),
              testing::ElementsAre(9, 1, 0, 8, 6, 3, 5, 2, 4, 7, 5, 2, 7, 9, 8, 3, 1, 6, 4, 0));
}

TEST(SampleOrder, NoSampleIsAnError) { EXPECT_THROW(SampleOrder(1, 0), UsageError); }

TEST(SampleOrder, EpochOfAPosition) {
  const SampleOrder order(1, 10);
  EXPECT_EQ(order.epoch(0), 0);
  EXPECT_EQ(order.epoch(9), 0);
  EXPECT_EQ(order.epoch(10), 1);
}

TEST(BatchPart, CoversTheBatchInOrderWithSizesThatDifferByOne) {
  for (const int64_t batch : {1, 2, 3, 7, 8, 64}) {
    for (int world = 1; world <= 9; ++world) {
      int64_t next = 0;
      int64_t smallest = batch;
      int64_t largest = 0;
      for (int rank = 0; rank < world; ++rank) {
        const BatchPart part = batch_part(batch, rank, world);
        EXPECT_EQ(part.begin, next);
        next = part.end;
        smallest = std::min(smallest, part.size());
        largest = std::max(largest, part.size());
      }
      EXPECT_EQ(next, batch);
      EXPECT_LE(largest - smallest, 1);
    }
  }
}

// The samples of `steps` steps from `position` on, as all ranks together consume them.
std::vector<int64_t> consume(const SampleOrder& order, int64_t position, int64_t batch, int world,
                             int64_t steps) {
  std::vector<int64_t> consumed;
  for (int64_t step = 0; step < steps; ++step, position += batch) {
    for (int rank = 0; rank < world; ++rank) {
      const BatchPart part = batch_part(batch, rank, world);
      const auto mine = indices(order, position + part.begin, position + part.end);
      consumed.insert(consumed.end(), mine.begin(), mine.end());
    }
  }
  return consumed;
}

// BL-67: 103 samples on 4 ranks, stopped after 7 batches, resumed on other worlds and batches.
TEST(SampleOrder, ResumeConsumesExactlyWhatWasLeft) {
  const SampleOrder order(3, 103);
  const std::vector<int64_t> reference = consume(order, 0, 1, 1, 206);
  const std::vector<int64_t> first = consume(order, 0, 10, 4, 7);
  for (const int world : {1, 2, 3, 7}) {
    for (const int64_t batch : {8, 17, 34}) {
      std::vector<int64_t> whole = first;
      const std::vector<int64_t> rest = consume(order, 70, batch, world, 136 / batch);
      whole.insert(whole.end(), rest.begin(), rest.end());
      EXPECT_EQ(whole, reference) << world << " ranks, batch " << batch;
    }
  }
}

}  // namespace
}  // namespace tessera::train
