// Where the parameters of one unit lie in flat buffers of equal segments, one segment a rank.
//
// Pure arithmetic, no torch. A unit's parameters of one dtype lie one after another in flat buffers
// of `world_size` equal segments; rank r owns segment r. Guarantees, each held by a property test:
//  * every segment boundary that falls inside a parameter falls on a row (dim 0) boundary, so what
//    a rank owns of a parameter is at most one box of whole rows, contiguous in the full tensor;
//  * every parameter starts 64-byte aligned (an unaligned weight changes the bits of a matrix
//    product); between parameters there may be padding, never inside one. Segments start 64-byte
//    aligned too, unless rows of odd length would then cost more than the next guarantee allows;
//  * padding of a buffer is at most 2 % of its payload + one largest row a rank + alignment gaps;
//    where one buffer cannot hold that, the unit is split into several, at worst one a parameter;
//  * a pure function of its arguments: every rank computes the same plan.
// Threads: values. Cost: microseconds a parameter, once at wrapping.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tessera::layout {

inline constexpr int64_t kAlignmentBytes = 64;

struct RowRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const RowRange&) const = default;
};

// A parameter as rows x row_numel elements; 0-dim counts as one row of one element.
struct ParamShape {
  int64_t rows = 0;
  int64_t row_numel = 0;
  int64_t numel() const { return rows * row_numel; }
};
ParamShape param_shape(std::span<const int64_t> sizes);

struct ParamPlacement {
  int buffer = 0;      // index into UnitLayout::buffers
  int64_t offset = 0;  // element offset of row 0 inside the whole flat buffer
  ParamShape shape;
};

struct FlatBufferLayout {
  int64_t segment_numel = 0;  // elements a rank owns, > 0; see above for its alignment
  std::vector<int> params;    // indices into UnitLayout::params, in order of offset
};

struct UnitLayout {
  int world_size = 1;
  int64_t element_size = 4;
  std::vector<ParamPlacement> params;  // in the order given
  std::vector<FlatBufferLayout> buffers;

  int64_t buffer_numel(int buffer) const {
    return buffers[static_cast<size_t>(buffer)].segment_numel * world_size;
  }
  // Rows of parameter `param` that `rank` owns; empty ranges are {n, n} with 0 <= n <= rows.
  RowRange rows_of(int param, int rank) const;
  // Element offset of the first owned row inside the whole flat buffer (0-row: segment start).
  int64_t shard_offset(int param, int rank) const;
  int64_t payload_numel() const;
  int64_t padding_numel() const;
  // Changes when any placement changes; stored in checkpoints of kind LOCAL.
  std::string fingerprint() const;
};

// All parameters have the same element size. world_size >= 1.
UnitLayout plan_unit(std::span<const ParamShape> params, int64_t element_size, int world_size);

}  // namespace tessera::layout
