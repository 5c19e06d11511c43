// Which stored byte ranges a rank needs to fill its rows, when rows were cut differently at save.
// Pure arithmetic, no torch. Threads: values. Cost: O(boxes log boxes + pieces) a tensor.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "layout/flat_layout.h"

namespace tessera::layout {

// One contiguous piece to copy: rows [rows.begin, rows.end) of the full tensor, found in stored box
// `box` starting `source_row` rows after that box's first row, wanted `target_row` rows after the
// first wanted row.
struct RowPiece {
  int box = 0;
  RowRange rows;
  int64_t source_row = 0;
  int64_t target_row = 0;
};

// `boxes` are the stored row ranges in any order; they must not overlap. Throws LayoutError where
// part of `wanted` is in no box, or where two boxes overlap.
std::vector<RowPiece> cover_rows(std::span<const RowRange> boxes, RowRange wanted);

}  // namespace tessera::layout
