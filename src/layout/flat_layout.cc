#include "layout/flat_layout.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>

#include "tessera/error.h"

namespace tessera::layout {

ParamShape param_shape(std::span<const int64_t> sizes) {
  if (sizes.empty()) return {1, 1};
  if (std::any_of(sizes.begin(), sizes.end(), [](int64_t size) { return size < 0; })) {
    throw LayoutError("a parameter has a negative size");
  }
  int64_t row_numel = 1;
  for (const int64_t size : sizes.subspan(1)) {
    if (__builtin_mul_overflow(row_numel, size, &row_numel)) {
      throw LayoutError("a parameter's row has more elements than 64 bits can count");
    }
  }
  int64_t numel = 0;
  if (__builtin_mul_overflow(sizes[0], row_numel, &numel)) {
    throw LayoutError("a parameter has more elements than 64 bits can count");
  }
  return {sizes[0], row_numel};
}

RowRange UnitLayout::rows_of(int param, int rank) const {
  const ParamPlacement& placement = params[static_cast<size_t>(param)];
  const ParamShape& shape = placement.shape;
  if (shape.numel() == 0) {  // no byte to own: rank 0 answers for the rows
    return rank == 0 ? RowRange{0, shape.rows} : RowRange{shape.rows, shape.rows};
  }
  const int64_t segment = buffers[static_cast<size_t>(placement.buffer)].segment_numel;
  const auto row_at = [&](int64_t boundary) {
    return std::clamp<int64_t>(boundary - placement.offset, 0, shape.numel()) / shape.row_numel;
  };
  return {row_at(rank * segment), row_at((rank + 1) * segment)};
}

int64_t UnitLayout::shard_offset(int param, int rank) const {
  const ParamPlacement& placement = params[static_cast<size_t>(param)];
  const RowRange rows = rows_of(param, rank);
  if (rows.size() * placement.shape.row_numel == 0) {
    return rank * buffers[static_cast<size_t>(placement.buffer)].segment_numel;
  }
  return placement.offset + rows.begin * placement.shape.row_numel;
}

int64_t UnitLayout::payload_numel() const {
  int64_t total = 0;
  for (const ParamPlacement& placement : params) total += placement.shape.numel();
  return total;
}

int64_t UnitLayout::padding_numel() const {
  int64_t total = 0;
  for (const FlatBufferLayout& buffer : buffers) total += buffer.segment_numel * world_size;
  return total - payload_numel();
}

std::string UnitLayout::fingerprint() const {
  std::vector<int64_t> words = {world_size, element_size, static_cast<int64_t>(buffers.size())};
  for (const FlatBufferLayout& buffer : buffers) words.push_back(buffer.segment_numel);
  for (const ParamPlacement& placement : params) {
    words.insert(words.end(), {placement.buffer, placement.offset, placement.shape.rows,
                               placement.shape.row_numel});
  }
  return fmt::format("{:016x}", XXH3_64bits(words.data(), words.size() * sizeof(int64_t)));
}

}  // namespace tessera::layout
