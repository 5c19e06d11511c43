// Builds the key space of a live state: every entry with its key, dtype, global shape and
// placement, and the scalars. Save and load both start here; nothing else enumerates state.
//
// Threads: the training thread. Cost: about 2 us an optimizer state; no tensor is copied but the
// generator's state (5 KB).
// Errors: UsageError for state that cannot be named or stored.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <unordered_map>
#include <vector>

#include "checkpoint/live_state.h"

namespace tessera::checkpoint {

class ContextBuilder {
 public:
  static StateDictContext build(const LiveState& state, const CkptSpec& spec);

  // Replaces what the ranks agreed on where their local views differed.
  static std::vector<StateEntry>& entries(StateDictContext& context) { return context.entries_; }
};

// Whether a state tensor has one entry of its first dimension for each row of `leaf`. A 0-dim
// parameter is one row; the leaf of its owner has no dimension, the others' have shape [0].
bool has_rows_of(const torch::Tensor& value, const torch::Tensor& leaf);

// Parameters by the tensor that optimizers hold.
using LeafNames = std::unordered_map<const void*, size_t>;
LeafNames leaf_index(const std::vector<ShardedParameter>& parameters);

// The groups of an optimizer: [{"params": [names], "options": {...}}]. Throws UsageError where a
// group holds a tensor that is no parameter of the sharded module.
nlohmann::json describe_groups(const torch::optim::Optimizer& optimizer, const LiveState& state,
                               const LeafNames& leaves);

}  // namespace tessera::checkpoint
