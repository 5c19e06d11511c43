// What a checkpoint is made of on this rank, taken apart: the checkpointer's own functions work on
// this and not on `Sharded`, so that tests can drive several ranks in one process.
#pragma once

#include <ATen/core/Generator.h>

#include <map>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "tessera/checkpoint.h"

namespace tessera::checkpoint {

struct LiveState {
  std::vector<ShardedParameter> parameters;
  std::vector<NamedBuffer> buffers;
  comm::Communicator* communicator = nullptr;
  torch::optim::Optimizer* optimizer = nullptr;
  std::map<std::string, torch::optim::Optimizer*> more_optimizers;  // of further models, by name
  std::map<std::string, TrainState::Item> items;
  std::map<std::string, ItemTensor> tensors;
  std::map<std::string, torch::optim::LRScheduler*> schedulers;
  StateFactory factory;
  at::Generator generator;         // this rank's CPU generator
  at::Generator device_generator;  // and that of its CUDA device, where it has one

  int rank() const { return communicator->rank(); }
  int world_size() const { return communicator->world_size(); }
};

LiveState live_state(const TrainState& state);

}  // namespace tessera::checkpoint
