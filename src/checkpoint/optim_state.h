// Optimizer state without a list of state keys: which values a state holds is what its own
// `serialize` says, for LibTorch's optimizers and for any other.
//
// Reading hands out live tensors. Building makes new state objects around given tensors, without
// copying them and without touching the optimizer; it never calls step().
// Threads: the optimizer's thread. Cost: about 2 us a state.
#pragma once

#include <torch/optim/optimizer.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/archive_values.h"
#include "tessera/checkpoint.h"

namespace tessera::checkpoint {

using OptimState = torch::optim::OptimizerParamState;

class OptimStateSerializer {
 public:
  OptimStateSerializer(torch::optim::Optimizer& optimizer, StateFactory factory)
      : optimizer_(optimizer), factory_(std::move(factory)) {}

  // Throws UsageError, naming the parameter, where the state does not serialise itself.
  static ArchiveValues read(const OptimState& state, const std::string& parameter);

  struct Wanted {
    std::string parameter;  // its name, for messages
    torch::Tensor leaf;     // the parameter that the optimizer holds
    ArchiveValues values;
  };
  // One new state object for each of `wanted`, in order; null where none can be made, with the
  // reason in `problems`. Tried in this order: the optimizer's own load() on a state map moved
  // aside, the registered factory, a clone of another state of this optimizer.
  std::vector<std::unique_ptr<OptimState>> build(const std::vector<Wanted>& wanted,
                                                 std::vector<std::string>& problems);

 private:
  using StateMap =
      std::remove_reference_t<decltype(std::declval<torch::optim::Optimizer>().state())>;
  StateMap build_by_load(const std::vector<Wanted>& wanted, std::string& reason);
  std::unique_ptr<OptimState> build_one(const Wanted& wanted, const OptimState* exemplar,
                                        const std::string& load_reason, std::string& problem) const;

  torch::optim::Optimizer& optimizer_;
  StateFactory factory_;
};

// Throws UsageError naming every parameter whose state lacks a key that others have (state_keys.h).
void assert_states_complete(const torch::optim::Optimizer& optimizer,
                            const std::vector<ShardedParameter>& parameters);

// The options of a group, by name; and back into the same options object.
ArchiveValues read_options(const torch::optim::OptimizerOptions& options);
void write_options(torch::optim::OptimizerOptions& options, const ArchiveValues& values);

}  // namespace tessera::checkpoint
