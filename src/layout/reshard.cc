#include "layout/reshard.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/error.h"

namespace tessera::layout {
namespace {

std::string text_of(const RowRange& rows) { return fmt::format("[{}, {})", rows.begin, rows.end); }

// Indices of the boxes that hold rows, by first row.
std::vector<int> sorted_boxes(std::span<const RowRange> boxes) {
  std::vector<int> order;
  for (int i = 0; i < static_cast<int>(boxes.size()); ++i) {
    const RowRange& box = boxes[static_cast<size_t>(i)];
    if (box.begin < 0 || box.end < box.begin) {
      throw LayoutError(fmt::format("stored box {} has the impossible rows {}", i, text_of(box)));
    }
    if (box.size() > 0) order.push_back(i);
  }
  const auto begin_of = [&](int box) { return boxes[static_cast<size_t>(box)].begin; };
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    return begin_of(a) != begin_of(b) ? begin_of(a) < begin_of(b) : a < b;
  });
  for (size_t i = 1; i < order.size(); ++i) {
    const RowRange& former = boxes[static_cast<size_t>(order[i - 1])];
    const RowRange& next = boxes[static_cast<size_t>(order[i])];
    if (next.begin < former.end) {
      throw LayoutError(fmt::format("stored boxes {} and {} overlap: rows {} and {}", order[i - 1],
                                    order[i], text_of(former), text_of(next)));
    }
  }
  return order;
}

}  // namespace

std::vector<RowPiece> cover_rows(std::span<const RowRange> boxes, RowRange wanted) {
  if (wanted.begin < 0 || wanted.end < wanted.begin) {
    throw LayoutError(fmt::format("the rows {} cannot be wanted", text_of(wanted)));
  }
  const std::vector<int> order = sorted_boxes(boxes);
  const auto box_of = [&](int index) { return boxes[static_cast<size_t>(index)]; };
  auto next = std::partition_point(order.begin(), order.end(),
                                   [&](int index) { return box_of(index).end <= wanted.begin; });
  std::vector<RowPiece> pieces;
  int64_t row = wanted.begin;
  while (row < wanted.end) {
    if (next == order.end() || box_of(*next).begin > row) {
      const int64_t end =
          next == order.end() ? wanted.end : std::min(wanted.end, box_of(*next).begin);
      throw LayoutError(fmt::format("rows {} of the wanted rows {} are in no stored box",
                                    text_of({row, end}), text_of(wanted)));
    }
    const RowRange box = box_of(*next);
    RowPiece piece;
    piece.box = *next++;
    piece.rows = {row, std::min(box.end, wanted.end)};
    piece.source_row = row - box.begin;
    piece.target_row = row - wanted.begin;
    row = piece.rows.end;
    pieces.push_back(piece);
  }
  return pieces;
}

}  // namespace tessera::layout
