// Places a set of parameters in one flat buffer, or says that the padding bound cannot be held.
//
// The search: for each candidate segment size, parameters longer than a segment are laid down
// first, each at the first offset where every boundary inside it is a row boundary; the shorter
// ones fill the gaps and the rest, whole where they fit. The smallest segment that holds everything
// wins. Threads: values. Cost: a few hundred placements of O(n log n) at worst, usually one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "layout/flat_layout.h"

namespace tessera::layout {

struct BufferPlan {
  int64_t segment_numel = 0;
  std::vector<int> order;        // indices into `members`, by offset
  std::vector<int64_t> offsets;  // of each member
};

// Elements that start on kAlignmentBytes.
int64_t alignment_numel(int64_t element_size);

// The largest segment that the padding bound allows for these parameters.
int64_t largest_segment(std::span<const ParamShape> members, int64_t alignment, int world_size);

// Always succeeds for a single parameter.
std::optional<BufferPlan> plan_buffer(std::span<const ParamShape> members, int64_t alignment,
                                      int world_size);

}  // namespace tessera::layout
