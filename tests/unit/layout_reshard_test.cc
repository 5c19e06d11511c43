#include "layout/reshard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "tessera/error.h"

namespace tessera::layout {
namespace {

using ::testing::HasSubstr;

std::string error_of(std::span<const RowRange> boxes, RowRange wanted) {
  try {
    cover_rows(boxes, wanted);
  } catch (const LayoutError& error) {
    return error.what();
  }
  return "";
}

TEST(CoverRows, TakesPartsOfNeighbouringBoxes) {
  const std::vector<RowRange> boxes = {{4, 8}, {0, 4}, {8, 12}};
  const std::vector<RowPiece> pieces = cover_rows(boxes, {2, 9});
  ASSERT_EQ(pieces.size(), 3U);
  EXPECT_EQ(pieces[0].box, 1);
  EXPECT_EQ(pieces[0].rows, (RowRange{2, 4}));
  EXPECT_EQ(pieces[0].source_row, 2);
  EXPECT_EQ(pieces[0].target_row, 0);
  EXPECT_EQ(pieces[1].box, 0);
  EXPECT_EQ(pieces[1].source_row, 0);
  EXPECT_EQ(pieces[1].target_row, 2);
  EXPECT_EQ(pieces[2].box, 2);
  EXPECT_EQ(pieces[2].rows, (RowRange{8, 9}));
  EXPECT_EQ(pieces[2].target_row, 6);
}

TEST(CoverRows, EmptyBoxesAndEmptyWishesNeedNothing) {
  const std::vector<RowRange> boxes = {{3, 3}, {0, 6}, {0, 0}, {6, 6}};
  EXPECT_EQ(cover_rows(boxes, {1, 5}).size(), 1U);
  EXPECT_TRUE(cover_rows(boxes, {4, 4}).empty());
  EXPECT_TRUE(cover_rows({}, {0, 0}).empty());
  EXPECT_TRUE(cover_rows({}, {7, 7}).empty());
}

TEST(CoverRows, NamesTheRowsThatNobodyStores) {
  const std::vector<RowRange> boxes = {{0, 4}, {6, 8}};
  EXPECT_THAT(error_of(boxes, {2, 8}), HasSubstr("rows [4, 6) of the wanted rows [2, 8)"));
  EXPECT_THAT(error_of(boxes, {7, 10}), HasSubstr("rows [8, 10)"));
  EXPECT_THAT(error_of({}, {0, 1}), HasSubstr("rows [0, 1)"));
}

TEST(CoverRows, RefusesOverlapsEvenOutsideTheWantedRows) {
  const std::vector<RowRange> overlap = {{0, 4}, {10, 14}, {13, 20}};
  EXPECT_THAT(error_of(overlap, {0, 4}), HasSubstr("boxes 1 and 2 overlap"));
  const std::vector<RowRange> nested = {{0, 10}, {2, 3}};
  EXPECT_THAT(error_of(nested, {0, 1}), HasSubstr("overlap"));
  const std::vector<RowRange> twice = {{0, 10}, {0, 10}};
  EXPECT_THAT(error_of(twice, {0, 1}), HasSubstr("overlap"));
}

TEST(CoverRows, RefusesImpossibleRanges) {
  const std::vector<RowRange> reversed = {{4, 2}};
  EXPECT_THAT(error_of(reversed, {0, 0}), HasSubstr("impossible rows [4, 2)"));
  const std::vector<RowRange> fine = {{0, 4}};
  EXPECT_THAT(error_of(fine, {3, 1}), HasSubstr("cannot be wanted"));
  EXPECT_THAT(error_of(fine, {-1, 1}), HasSubstr("cannot be wanted"));
}

// Cuts [0, rows) at random places and shuffles the pieces.
std::vector<RowRange> random_partition(int64_t rows, std::mt19937_64& random) {
  std::vector<int64_t> cuts = {0, rows};
  for (uint64_t i = random() % 8; i > 0; --i) {
    cuts.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(rows + 1)));
  }
  std::sort(cuts.begin(), cuts.end());
  std::vector<RowRange> boxes;
  for (size_t i = 1; i < cuts.size(); ++i) boxes.push_back({cuts[i - 1], cuts[i]});
  std::shuffle(boxes.begin(), boxes.end(), random);
  return boxes;
}

TEST(CoverRowsProperty, CopyingThePiecesReproducesTheWantedRows) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 5000; ++round) {
    const int64_t rows = static_cast<int64_t>(random() % 50);
    const std::vector<RowRange> boxes = random_partition(rows, random);
    RowRange wanted{static_cast<int64_t>(random() % static_cast<uint64_t>(rows + 1)), rows};
    wanted.end -= static_cast<int64_t>(random() % static_cast<uint64_t>(wanted.size() + 1));
    std::vector<int64_t> target(static_cast<size_t>(wanted.size()), -1);
    for (const RowPiece& piece : cover_rows(boxes, wanted)) {
      const RowRange box = boxes[static_cast<size_t>(piece.box)];
      ASSERT_GT(piece.rows.size(), 0);
      ASSERT_LE(piece.source_row + piece.rows.size(), box.size());
      for (int64_t i = 0; i < piece.rows.size(); ++i) {
        int64_t& slot = target.at(static_cast<size_t>(piece.target_row + i));
        ASSERT_EQ(slot, -1) << "copied twice";
        slot = box.begin + piece.source_row + i;
        ASSERT_EQ(slot, piece.rows.begin + i);
      }
    }
    std::vector<int64_t> expected(target.size());
    std::iota(expected.begin(), expected.end(), wanted.begin);
    ASSERT_EQ(target, expected) << "round " << round;
  }
}

// What one world size saved, another loads: the pieces of all ranks cover every row once.
TEST(CoverRowsProperty, EveryWorldSizeReadsEveryOther) {
  const std::vector<ParamShape> shapes = {{37, 12}, {5, 1}, {1, 640}, {257, 33}, {0, 4}, {3, 0}};
  for (int saved = 1; saved <= 9; ++saved) {
    const UnitLayout source = plan_unit(shapes, 4, saved);
    for (int loaded = 1; loaded <= 9; ++loaded) {
      const UnitLayout target = plan_unit(shapes, 4, loaded);
      for (int param = 0; param < static_cast<int>(shapes.size()); ++param) {
        std::vector<RowRange> boxes;
        for (int rank = 0; rank < saved; ++rank) boxes.push_back(source.rows_of(param, rank));
        int64_t covered = 0;
        for (int rank = 0; rank < loaded; ++rank) {
          for (const RowPiece& piece : cover_rows(boxes, target.rows_of(param, rank))) {
            covered += piece.rows.size();
          }
        }
        ASSERT_EQ(covered, shapes[static_cast<size_t>(param)].rows);
      }
    }
  }
}

}  // namespace
}  // namespace tessera::layout
