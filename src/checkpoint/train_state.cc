#include "tessera/train_state.h"

#include <torch/optim/lbfgs.h>

#include "checkpoint/adagrad_state.h"
#include "tessera/error.h"

namespace tessera {

namespace {

void accept_optimizer(torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer) != nullptr)
    throw UsageError(
        "LBFGS cannot train a sharded model: its directions and line search are inner products over "
        "all parameters, and on a rank's own rows every rank would compute others; use another "
        "optimizer");
  // Groups added since the optimizer was built have their state from here on.
  checkpoint::complete_adagrad(optimizer);
}

[[noreturn]] void throw_taken(const char* kind, const std::string& name) {
  throw UsageError(std::string(kind) + " called '" + name + "' is registered already");
}

}  // namespace

ItemTensor ItemTensor::replicated(torch::Tensor tensor) {
  ItemTensor item;
  item.tensor_ = std::move(tensor);
  return item;
}

ItemTensor ItemTensor::sharded_like(const std::string& fqn, torch::Tensor rows) {
  ItemTensor item;
  item.spread_ = Spread::kShardedLike;
  item.tensor_ = std::move(rows);
  item.parameter_ = fqn;
  return item;
}

ItemTensor ItemTensor::per_rank(torch::Tensor tensor, OtherWorld otherwise) {
  if (otherwise == OtherWorld::kMerge)
    throw UsageError("ItemTensor::per_rank: merging needs a function");
  ItemTensor item;
  item.spread_ = Spread::kPerRank;
  item.tensor_ = std::move(tensor);
  item.otherwise_ = otherwise;
  return item;
}

ItemTensor ItemTensor::per_rank(torch::Tensor tensor, Merge merge) {
  ItemTensor item = per_rank(std::move(tensor));
  item.otherwise_ = OtherWorld::kMerge;
  item.merge_ = std::move(merge);
  return item;
}

TrainState::TrainState(Sharded sharded) : sharded_(std::move(sharded)) {}
TrainState::TrainState(Sharded sharded, torch::optim::Optimizer& optimizer)
    : sharded_(std::move(sharded)), optimizer_(&optimizer) {
  accept_optimizer(optimizer);
}

TrainState& TrainState::model(const std::string& name, Sharded sharded) {
  if (sharded.mesh().communicator() != sharded_.mesh().communicator())
    throw UsageError("the model '" + name + "' is sharded over another mesh");
  if (!models_.emplace(name, Model{std::move(sharded), nullptr}).second)
    throw_taken("a model", name);
  return *this;
}

TrainState& TrainState::model(const std::string& name, Sharded sharded,
                              torch::optim::Optimizer& optimizer) {
  accept_optimizer(optimizer);
  model(name, std::move(sharded));
  models_.at(name).optimizer = &optimizer;
  return *this;
}

TrainState& TrainState::state_factory(StateFactory factory) {
  factory_ = std::move(factory);
  return *this;
}

TrainState& TrainState::scheduler(const std::string& name, torch::optim::LRScheduler& scheduler) {
  if (!schedulers_.emplace(name, &scheduler).second) throw_taken("a scheduler", name);
  return *this;
}

TrainState& TrainState::item(const std::string& name, std::function<ItemValue()> get,
                             std::function<void(const ItemValue&)> set) {
  if (!items_.emplace(name, Item{std::move(get), std::move(set)}).second)
    throw_taken("an item", name);
  return *this;
}

TrainState& TrainState::tensor(const std::string& name, ItemTensor tensor) {
  if (!tensor.tensor().defined()) throw UsageError("the tensor '" + name + "' is undefined");
  if (!tensors_.emplace(name, std::move(tensor)).second) throw_taken("a tensor", name);
  return *this;
}

}  // namespace tessera
