// In which order samples are consumed, and which of them a rank takes.
//
// The order is a pseudo-random permutation of each epoch, computed from (seed, epoch) without a
// table. It does not depend on the world size or the batch size: the sample at global position p is
// the same on one rank and on a thousand, which is what lets a run resume anywhere with exactly the
// samples that were left.
//
// Threads: immutable. Cost: about 50 ns a sample, no memory.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera::train {

struct SampleRef {
  int64_t position = 0;  // samples consumed before this one, over all epochs
  int64_t index = 0;     // which sample of the data
};

// Half-open range of positions within one global batch.
struct BatchPart {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

// The contiguous part of a global batch that `rank` takes; sizes differ by at most one over the
// ranks, and a rank may get nothing.
BatchPart batch_part(int64_t batch, int rank, int world_size);

class SampleOrder {
 public:
  // Throws UsageError unless count > 0.
  SampleOrder(uint64_t seed, int64_t count);

  int64_t count() const { return count_; }
  int64_t epoch(int64_t position) const { return position / count_; }
  SampleRef at(int64_t position) const;
  // Positions [begin, end).
  std::vector<SampleRef> slice(int64_t begin, int64_t end) const;

 private:
  uint64_t permute_once(uint64_t value, uint64_t key) const;

  uint64_t seed_;
  int64_t count_;
  int half_bits_;
};

}  // namespace tessera::train
