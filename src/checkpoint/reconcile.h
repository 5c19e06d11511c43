// What the ranks must agree on before a save: the same entries with the same values where a value
// is stored once.
//
// Cost: one exchange of about 100 bytes + 8 a buffer; a second one of about 100 bytes an entry only
// where the first shows a difference that `memory` does not know.
// Errors: LayoutError listing what differs, the same on all ranks.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "checkpoint/live_state.h"
#include "checkpoint/plan_memory.h"

namespace tessera::checkpoint {

struct SaveAgreement {
  std::string layout;        // fingerprint of the rows of all ranks
  uint64_t total_bytes = 0;  // what all ranks will write
  std::string claim;         // what rank 0's `claim` returned
  std::shared_ptr<const PlannedFiles> files;  // of this rank
};

// Builds the context on every rank and makes them agree. Buffers that differ become kPerRank; for
// LOCAL everything that is not sharded does. `path` and `step` must be equal. `claim` is called on
// every rank once its context is built; its errors are those of the agreement. [collective]
SaveAgreement agree_on_save(const LiveState& state, const CkptSpec& spec, const std::string& path,
                            int64_t step, StateDictContext& context, PlanMemory& memory,
                            const std::function<std::string()>& claim);

// Puts the local fingerprints of all ranks together.
std::string join_layouts(const std::vector<uint64_t>& local);
uint64_t local_layout(const LiveState& state);

}  // namespace tessera::checkpoint
