#include "layout/flat_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>

#include "tessera/error.h"

namespace tessera::layout {
namespace {

using Shapes = std::vector<ParamShape>;

int64_t total_numel(const Shapes& shapes) {
  int64_t total = 0;
  for (const ParamShape& shape : shapes) total += shape.numel();
  return total;
}

void expect_bounded_padding(const UnitLayout& unit, size_t index) {
  const FlatBufferLayout& buffer = unit.buffers[index];
  int64_t payload = 0;
  int64_t largest_row = 0;
  for (const int param : buffer.params) {
    const ParamShape& shape = unit.params[static_cast<size_t>(param)].shape;
    payload += shape.numel();
    if (shape.numel() > 0) largest_row = std::max(largest_row, shape.row_numel);
  }
  const int64_t padding = unit.buffer_numel(static_cast<int>(index)) - payload;
  const int64_t gaps = kAlignmentBytes * (std::ssize(buffer.params) + unit.world_size);
  ASSERT_GE(padding, 0);
  ASSERT_LE(padding * unit.element_size,
            (payload / 50 + largest_row * unit.world_size) * unit.element_size + gaps);
}

void expect_no_overlap(const UnitLayout& unit, size_t index) {
  int64_t end = 0;
  for (const int param : unit.buffers[index].params) {
    const ParamPlacement& placement = unit.params[static_cast<size_t>(param)];
    ASSERT_EQ(placement.buffer, static_cast<int>(index));
    ASSERT_GE(placement.offset, end);
    ASSERT_EQ(placement.offset * unit.element_size % kAlignmentBytes, 0);
    end = placement.offset + placement.shape.numel();
  }
  ASSERT_LE(end, unit.buffer_numel(static_cast<int>(index)));
}

void expect_rows_partition(const UnitLayout& unit, int param) {
  const ParamPlacement& placement = unit.params[static_cast<size_t>(param)];
  const int64_t segment = unit.buffers[static_cast<size_t>(placement.buffer)].segment_numel;
  int64_t next = 0;
  for (int rank = 0; rank < unit.world_size; ++rank) {
    const RowRange rows = unit.rows_of(param, rank);
    const int64_t offset = unit.shard_offset(param, rank);
    const int64_t numel = rows.size() * placement.shape.row_numel;
    ASSERT_LE(rows.begin, rows.end);
    ASSERT_LE(rows.end, placement.shape.rows);
    ASSERT_GE(offset, rank * segment);
    ASSERT_LE(offset + numel, (rank + 1) * segment);
    if (numel == 0) {
      ASSERT_EQ(offset, rank * segment);
    }
    if (numel > 0) {
      ASSERT_EQ(offset, placement.offset + rows.begin * placement.shape.row_numel);
    }
    if (rows.size() == 0) continue;
    ASSERT_EQ(rows.begin, next);
    next = rows.end;
    const int64_t boundary = (rank + 1) * segment - placement.offset;
    if (boundary > 0 && boundary < placement.shape.numel()) {
      ASSERT_EQ(boundary % placement.shape.row_numel, 0);
    }
  }
  ASSERT_EQ(next, placement.shape.rows);
}

void expect_guarantees(const Shapes& shapes, const UnitLayout& unit) {
  ASSERT_EQ(unit.params.size(), shapes.size());
  std::vector<int> placed(shapes.size(), 0);
  for (size_t index = 0; index < unit.buffers.size(); ++index) {
    ASSERT_GT(unit.buffers[index].segment_numel, 0);
    for (const int param : unit.buffers[index].params) ++placed[static_cast<size_t>(param)];
    ASSERT_NO_FATAL_FAILURE(expect_no_overlap(unit, index));
    ASSERT_NO_FATAL_FAILURE(expect_bounded_padding(unit, index));
  }
  ASSERT_TRUE(std::all_of(placed.begin(), placed.end(), [](int count) { return count == 1; }));
  for (size_t i = 0; i < shapes.size(); ++i) {
    ASSERT_EQ(unit.params[i].shape.rows, shapes[i].rows);
    ASSERT_EQ(unit.params[i].shape.row_numel, shapes[i].row_numel);
    ASSERT_NO_FATAL_FAILURE(expect_rows_partition(unit, static_cast<int>(i)));
  }
  ASSERT_EQ(unit.payload_numel(), total_numel(shapes));
}

bool segments_aligned(const UnitLayout& unit) {
  return std::all_of(unit.buffers.begin(), unit.buffers.end(), [&](const FlatBufferLayout& buffer) {
    return buffer.segment_numel * unit.element_size % kAlignmentBytes == 0;
  });
}

Shapes gpt_block(int64_t d) {
  return {{d, 1}, {d, 1}, {3 * d, d}, {3 * d, 1}, {d, d},     {d, 1},
          {d, 1}, {d, 1}, {4 * d, d}, {4 * d, 1}, {d, 4 * d}, {d, 1}};
}

TEST(ParamShape, CountsRowsAndRowElements) {
  const std::vector<int64_t> conv = {64, 3, 7, 7};
  EXPECT_EQ(param_shape(conv).rows, 64);
  EXPECT_EQ(param_shape(conv).row_numel, 147);
  EXPECT_EQ(param_shape({}).numel(), 1);
  const std::vector<int64_t> empty_rows = {0, 5};
  EXPECT_EQ(param_shape(empty_rows).rows, 0);
  const std::vector<int64_t> vector = {7};
  EXPECT_EQ(param_shape(vector).row_numel, 1);
}

TEST(ParamShape, RefusesSizesThatOverflow) {
  const std::vector<int64_t> huge = {int64_t{1} << 40, int64_t{1} << 40};
  EXPECT_THROW(param_shape(huge), LayoutError);
  const std::vector<int64_t> huge_row = {1, int64_t{1} << 40, int64_t{1} << 40};
  EXPECT_THROW(param_shape(huge_row), LayoutError);
  const std::vector<int64_t> negative = {3, -1};
  EXPECT_THROW(param_shape(negative), LayoutError);
}

TEST(PlanUnit, GptBlockIsOneAlignedBufferWithLittlePadding) {
  for (const int world : {1, 2, 3, 4, 7, 8, 64}) {
    const Shapes shapes = gpt_block(768);
    const UnitLayout unit = plan_unit(shapes, 4, world);
    expect_guarantees(shapes, unit);
    EXPECT_EQ(unit.buffers.size(), 1U) << world;
    EXPECT_TRUE(segments_aligned(unit)) << world;
    EXPECT_LE(unit.padding_numel(), unit.payload_numel() / 50 + 3072 * world) << world;
  }
}

TEST(PlanUnit, WorldOfOneHasOnlyAlignmentGaps) {
  const Shapes shapes = {{1000, 1000}, {777, 777}, {3, 5}, {1, 1}, {555, 555}};
  const UnitLayout unit = plan_unit(shapes, 4, 1);
  expect_guarantees(shapes, unit);
  EXPECT_EQ(unit.buffers.size(), 1U);
  EXPECT_LE(unit.padding_numel(), 5 * 16);
  EXPECT_EQ(unit.rows_of(1, 0), (RowRange{0, 777}));
}

TEST(PlanUnit, OddRowsSplitIntoSeveralBuffers) {
  const Shapes shapes = {{4000, 1000}, {4001, 777}, {4003, 555}, {5000, 257}};
  for (const int world : {2, 3, 4, 8, 16, 64}) {
    const UnitLayout unit = plan_unit(shapes, 4, world);
    expect_guarantees(shapes, unit);
    EXPECT_LE(unit.buffers.size(), shapes.size()) << world;
  }
}

TEST(PlanUnit, RelaxesSegmentAlignmentOnlyWhereOddRowsForceIt) {
  const Shapes few_rows = {{10, 777}};
  const UnitLayout unit = plan_unit(few_rows, 4, 4);
  expect_guarantees(few_rows, unit);
  EXPECT_EQ(unit.buffers[0].segment_numel, 3 * 777);
  const Shapes many_rows = {{4000, 777}};
  EXPECT_TRUE(segments_aligned(plan_unit(many_rows, 4, 4)));
}

TEST(PlanUnit, OneGiantRowGoesToOneRank) {
  const Shapes shapes = {{1, 1'000'003}};
  const UnitLayout unit = plan_unit(shapes, 4, 4);
  expect_guarantees(shapes, unit);
  EXPECT_EQ(unit.rows_of(0, 0), (RowRange{0, 1}));
  EXPECT_EQ(unit.rows_of(0, 3), (RowRange{1, 1}));
}

TEST(PlanUnit, MoreRanksThanRows) {
  const Shapes shapes = {{3, 1000}, {3, 1}};
  const UnitLayout unit = plan_unit(shapes, 4, 8);
  expect_guarantees(shapes, unit);
  for (int rank = 0; rank < 8; ++rank) EXPECT_LE(unit.rows_of(0, rank).size(), 2);
}

TEST(PlanUnit, EmptyParametersAndScalars) {
  const Shapes shapes = {{0, 5}, {5, 0}, {1, 1}, {0, 0}, {10, 4}};
  for (const int world : {1, 2, 5}) {
    const UnitLayout unit = plan_unit(shapes, 8, world);
    expect_guarantees(shapes, unit);
    EXPECT_EQ(unit.rows_of(1, 0), (RowRange{0, 5}));
    if (world > 1) {
      EXPECT_EQ(unit.rows_of(1, 1), (RowRange{5, 5}));
    }
  }
}

TEST(PlanUnit, OnlyEmptyParametersAndNone) {
  const Shapes shapes = {{0, 5}, {3, 0}};
  expect_guarantees(shapes, plan_unit(shapes, 4, 3));
  const UnitLayout none = plan_unit({}, 4, 3);
  EXPECT_TRUE(none.buffers.empty());
  EXPECT_EQ(none.padding_numel(), 0);
}

TEST(PlanUnit, RefusesSenselessArguments) {
  const Shapes shapes = {{1, 1}};
  EXPECT_THROW(plan_unit(shapes, 4, 0), LayoutError);
  EXPECT_THROW(plan_unit(shapes, 0, 1), LayoutError);
}

TEST(PlanUnit, FingerprintIsStableAndSeesEveryPlacement) {
  const Shapes shapes = gpt_block(64);
  const UnitLayout unit = plan_unit(shapes, 4, 3);
  EXPECT_EQ(unit.fingerprint(), plan_unit(shapes, 4, 3).fingerprint());
  EXPECT_EQ(unit.fingerprint().size(), 16U);
  EXPECT_NE(unit.fingerprint(), plan_unit(shapes, 4, 2).fingerprint());
  EXPECT_NE(unit.fingerprint(), plan_unit(shapes, 2, 3).fingerprint());
  UnitLayout moved = unit;
  moved.params[3].offset += 16;
  EXPECT_NE(unit.fingerprint(), moved.fingerprint());
}

// Shapes of a random unit, from friendly powers of two to hostile primes.
Shapes random_unit(std::mt19937_64& random) {
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  static constexpr int64_t kRows[] = {1, 3, 64, 96, 147, 257, 512, 555, 768, 777, 1000, 1023, 4096};
  Shapes shapes(static_cast<size_t>(pick(1, 24)));
  const int64_t style = pick(0, 3);
  for (ParamShape& shape : shapes) {
    const int64_t row = style == 0   ? int64_t{1} << pick(0, 12)
                        : style == 1 ? pick(1, 3000)
                                     : kRows[pick(0, 12)];
    const int64_t rows = style == 3 ? pick(0, 40) : int64_t{1} << pick(0, 13);
    shape = {pick(0, 9) == 0 ? rows * pick(0, 1) : rows + pick(0, 3), pick(0, 30) == 0 ? 0 : row};
  }
  return shapes;
}

TEST(PlanUnitProperty, RandomUnitsKeepEveryGuarantee) {
  std::mt19937_64 random(20240611);
  for (int round = 0; round < 3000; ++round) {
    const Shapes shapes = random_unit(random);
    const int64_t element_size = int64_t{1} << (random() % 4);
    const int world = 1 + static_cast<int>(random() % 64);
    const UnitLayout unit = plan_unit(shapes, element_size, world);
    ASSERT_NO_FATAL_FAILURE(expect_guarantees(shapes, unit))
        << "round " << round << " world " << world << " element size " << element_size;
    ASSERT_EQ(unit.fingerprint(), plan_unit(shapes, element_size, world).fingerprint());
  }
}

TEST(PlanUnitProperty, TenThousandParametersPlanInWellUnderASecond) {
  std::mt19937_64 random(7);
  Shapes regular;
  for (int layer = 0; layer < 834; ++layer) {
    for (const ParamShape& shape : gpt_block(256)) regular.push_back(shape);
  }
  Shapes irregular;
  for (int i = 0; i < 10'000; ++i) {
    irregular.push_back(
        {1 + static_cast<int64_t>(random() % 2000), 1 + static_cast<int64_t>(random() % 3000)});
  }
  for (const Shapes& shapes : {regular, irregular}) {
    const auto start = std::chrono::steady_clock::now();
    const UnitLayout unit = plan_unit(shapes, 4, 64);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    expect_guarantees(shapes, unit);
    EXPECT_LE(unit.buffers.size(), 2U);
    EXPECT_LT(elapsed.count(), 5.0) << "typically 20 ms; generous for sanitizers on a busy machine";
  }
}

}  // namespace
}  // namespace tessera::layout
