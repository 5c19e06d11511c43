// What a checkpoint holds: models, optimizers, schedulers and whatever else a program needs to go on.
//
// A TrainState refers to live objects, which must outlive it; building one is cheap and copies
// nothing. Threads: the thread that trains. Names must be the same on all ranks.
// Errors: UsageError for a name that is taken.
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include <tessera/fsdp.h>

namespace tessera {

// A value of the user: bool, integer, number, text, or a list or dictionary of values.
struct ItemValue : std::variant<bool, int64_t, double, std::string, std::vector<ItemValue>,
                                std::map<std::string, ItemValue>> {
  using List = std::vector<ItemValue>;
  using Dict = std::map<std::string, ItemValue>;
  using variant::variant;
};

// Creates an empty state object of a custom optimizer whose states are made lazily.
using StateFactory = std::function<std::unique_ptr<torch::optim::OptimizerParamState>()>;

// What another number of ranks makes of tensors that each rank has for itself.
enum class OtherWorld {
  kRefuse,     // the load is refused
  kTakeRank0,  // every rank takes rank 0's
  kMerge,      // every rank takes what a function makes of all of them
};

// A tensor of the user. A load copies into it, so its shape and dtype must be there before.
class ItemTensor {
 public:
  // Makes one tensor of those of the ranks that saved, in rank order.
  using Merge = std::function<torch::Tensor(const std::vector<torch::Tensor>&)>;

  // Equal on all ranks (compared by hash at save), stored once.
  static ItemTensor replicated(torch::Tensor tensor);
  // This rank's rows, dim 0 being cut as that of the parameter `fqn`: an average of its weights, for
  // one. Loads at any world size.
  static ItemTensor sharded_like(const std::string& fqn, torch::Tensor rows);
  // Another one on each rank, of the same shape and dtype; each gets its own back.
  static ItemTensor per_rank(torch::Tensor tensor, OtherWorld otherwise = OtherWorld::kRefuse);
  static ItemTensor per_rank(torch::Tensor tensor, Merge merge);

  enum class Spread { kReplicated, kShardedLike, kPerRank };
  Spread spread() const { return spread_; }
  const torch::Tensor& tensor() const { return tensor_; }
  const std::string& parameter() const { return parameter_; }
  OtherWorld otherwise() const { return otherwise_; }
  const Merge& merge() const { return merge_; }

 private:
  Spread spread_ = Spread::kReplicated;
  torch::Tensor tensor_;
  std::string parameter_;
  OtherWorld otherwise_ = OtherWorld::kRefuse;
  Merge merge_;
};

class TrainState {
 public:
  explicit TrainState(Sharded sharded);
  TrainState(Sharded sharded, torch::optim::Optimizer& optimizer);

  // A further model on the same mesh, with its optimizer or without: a discriminator, a teacher. Its
  // names begin with `name` and a dot.
  TrainState& model(const std::string& name, Sharded sharded);
  TrainState& model(const std::string& name, Sharded sharded, torch::optim::Optimizer& optimizer);
  TrainState& state_factory(StateFactory factory);
  // A learning-rate scheduler: its step count is saved and restored.
  TrainState& scheduler(const std::string& name, torch::optim::LRScheduler& scheduler);
  // A value of the user, read by `get` at save and handed to `set` at load. It must be equal on all
  // ranks. `set` runs after everything else was taken over.
  TrainState& item(const std::string& name, std::function<ItemValue()> get,
                   std::function<void(const ItemValue&)> set);
  TrainState& tensor(const std::string& name, ItemTensor tensor);

  const Sharded& sharded() const { return sharded_; }
  torch::optim::Optimizer* optimizer() const { return optimizer_; }

  struct Item {
    std::function<ItemValue()> get;
    std::function<void(const ItemValue&)> set;
  };
  struct Model {
    Sharded sharded;
    torch::optim::Optimizer* optimizer = nullptr;
  };
  const std::map<std::string, Item>& items() const { return items_; }
  const std::map<std::string, ItemTensor>& tensors() const { return tensors_; }
  const std::map<std::string, Model>& models() const { return models_; }
  const std::map<std::string, torch::optim::LRScheduler*>& schedulers() const {
    return schedulers_;
  }
  const StateFactory& state_factory() const { return factory_; }

 private:
  Sharded sharded_;
  torch::optim::Optimizer* optimizer_ = nullptr;
  std::map<std::string, Item> items_;
  std::map<std::string, ItemTensor> tensors_;
  std::map<std::string, Model> models_;
  std::map<std::string, torch::optim::LRScheduler*> schedulers_;
  StateFactory factory_;
};

}  // namespace tessera
