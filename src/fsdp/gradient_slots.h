// A few exported regions per rank in which a unit's gradients wait until every peer has read its
// segment. Kept and reused; as many as units are in flight at once.
// Cost: no allocation from the second step on; waits only when all slots are still being read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/shared_memory.h"

namespace tessera::fsdp {

class GradientSlots {
 public:
  explicit GradientSlots(comm::SharedMemory& memory) : memory_(memory) {}

  // The number of an exported region of at least `bytes`, owned by the caller until `release`.
  int acquire(size_t bytes);
  // The region may be reused once every rank's kReduced counter has reached `reduction`.
  void release(int region, uint32_t reduction);
  std::byte* data(int rank, int region) { return memory_.region(rank, region); }

 private:
  struct Slot {
    int region;
    size_t bytes;
    bool owned;
    bool was_used;
    uint32_t free_after;
  };
  bool is_free(const Slot& slot) const {
    return !slot.owned && (!slot.was_used || memory_.all_reached(comm::SharedMemory::kReduced, slot.free_after));
  }

  comm::SharedMemory& memory_;
  std::vector<Slot> slots_;
};

}  // namespace tessera::fsdp
