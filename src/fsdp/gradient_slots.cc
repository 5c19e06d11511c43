#include "fsdp/gradient_slots.h"

#include <algorithm>

namespace tessera::fsdp {
namespace {

// With fewer slots in use, a new one is cheaper than waiting for the slowest peer.
constexpr size_t kPatienceSlots = 4;

}  // namespace

int GradientSlots::acquire(size_t bytes) {
  Slot* best = nullptr;
  Slot* waiting = nullptr;
  for (Slot& slot : slots_) {
    if (slot.bytes < bytes || slot.owned) continue;
    if (is_free(slot)) {
      if (best == nullptr || slot.bytes < best->bytes) best = &slot;
    } else if (waiting == nullptr || static_cast<int32_t>(slot.free_after - waiting->free_after) < 0) {
      waiting = &slot;
    }
  }
  if (best == nullptr && waiting != nullptr && slots_.size() >= kPatienceSlots) {
    memory_.wait_all(comm::SharedMemory::kReduced, waiting->free_after, "its share of an earlier gradient reduction");
    best = waiting;
  }
  if (best == nullptr) {
    slots_.push_back({memory_.export_region(bytes), bytes, false, false, 0});
    best = &slots_.back();
  }
  best->owned = true;
  return best->region;
}

void GradientSlots::release(int region, uint32_t reduction) {
  for (Slot& slot : slots_) {
    if (slot.region != region) continue;
    slot.owned = false;
    slot.was_used = true;
    slot.free_after = reduction;
  }
}

}  // namespace tessera::fsdp
