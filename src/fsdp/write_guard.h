// Says that a tensor is about to change, to somebody who still reads it: a background save.
//
// Threads: `guard_writes` from the thread that trains; `before_write` from any thread that runs an
// operator. Cost: a guarded tensor carries the dispatch key, 1 to 2 us for each operator that takes
// it; a sharded leaf carries it anyway.
#pragma once

#include <torch/types.h>

#include <memory>

namespace tessera::fsdp {

class WriteGuard {
 public:
  virtual ~WriteGuard() = default;
  // Returns when the memory may change.
  virtual void before_write() = 0;
};

// `guard` is asked before an operator writes the memory of `tensor`. For an ordinary tensor that
// holds until the memory is freed or guarded by another; for a sharded leaf until the first write
// to any leaf of its model, or the end of the next backward, whichever comes first. What writes
// past the dispatcher (raw pointers) is not seen.
void guard_writes(const torch::Tensor& tensor, const std::shared_ptr<WriteGuard>& guard);

}  // namespace tessera::fsdp
