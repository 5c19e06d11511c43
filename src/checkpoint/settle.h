// Where ranks list different entries for the same state: what each entry is on all of them.
//
// Cost: one exchange of about 100 bytes an entry.
// Errors: LayoutError listing every difference that has no such reading, the same on all ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/live_state.h"

namespace tessera::checkpoint {

// Changes placement and shape of the entries to what all ranks agree on. [collective]
void settle_differences(const LiveState& state, StateDictContext& context);

// Of the bytes that are here.
uint64_t content_hash(const StateEntry& entry);

[[noreturn]] void throw_differences(const std::vector<std::string>& complaints);

}  // namespace tessera::checkpoint
