#include "tessera/checkpoint.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/StringUtil.h>

#include "checkpoint/adagrad_state.h"
#include "checkpoint/background_save.h"
#include "checkpoint/checkpointer.h"
#include "checkpoint/context.h"
#include "checkpoint/load.h"
#include "checkpoint/optim_state.h"
#include "checkpoint/save.h"
#include "checkpoint/state_keys.h"
#include "tessera/error.h"

namespace tessera {

TrainState::TrainState(Sharded sharded) : sharded_(std::move(sharded)) {}
TrainState::TrainState(Sharded sharded, torch::optim::Optimizer& optimizer)
    : sharded_(std::move(sharded)), optimizer_(&optimizer) {
  if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer) != nullptr)
    throw UsageError(
        "LBFGS cannot train a sharded model: its directions and line search are inner products over "
        "all parameters, and on a rank's own rows every rank would compute others; use another "
        "optimizer");
  // Groups added since the optimizer was built have their state from here on.
  checkpoint::complete_adagrad(optimizer);
}

TrainState& TrainState::state_factory(StateFactory factory) {
  factory_ = std::move(factory);
  return *this;
}

TrainState& TrainState::scheduler(const std::string& name, torch::optim::LRScheduler& scheduler) {
  if (!schedulers_.emplace(name, &scheduler).second)
    throw UsageError("a scheduler called '" + name + "' is registered already");
  return *this;
}

TrainState& TrainState::item(const std::string& name, std::function<ItemValue()> get,
                             std::function<void(const ItemValue&)> set) {
  if (!items_.emplace(name, Item{std::move(get), std::move(set)}).second)
    throw UsageError("an item called '" + name + "' is registered already");
  return *this;
}

namespace checkpoint {

LiveState live_state(const TrainState& state) {
  LiveState live;
  live.parameters = state.sharded().parameters();
  live.buffers = state.sharded().buffers();
  live.communicator = state.sharded().mesh().communicator().get();
  live.optimizer = state.optimizer();
  live.items = state.items();
  live.schedulers = state.schedulers();
  live.factory = state.state_factory();
  live.generator = at::detail::getDefaultCPUGenerator();
  return live;
}

}  // namespace checkpoint

StateDictContext make_state_dict_context(const TrainState& state, const CkptSpec& spec) {
  return checkpoint::ContextBuilder::build(checkpoint::live_state(state), spec);
}

void save_checkpoint(const std::string& path, const TrainState& state, const CkptSpec& spec,
                     int64_t step, const SaveOptions& options) {
  checkpoint::save_state(io::real_file_system(), checkpoint::live_state(state), spec, {path, false},
                         step, options);
}

LoadReport load_checkpoint(const std::string& path, TrainState& state, const CkptSpec& spec,
                           const LoadOptions& options) {
  return checkpoint::load_state(io::real_file_system(), path, checkpoint::live_state(state), spec,
                                options);
}

void assert_step_present(const torch::optim::Optimizer& optimizer, const Sharded& sharded) {
  checkpoint::assert_states_complete(optimizer, sharded.parameters());
}

Checkpointer::Checkpointer(std::string root, CkptSpec spec, const Runtime& runtime,
                           CheckpointerOptions options)
    : root_(std::move(root)),
      spec_(std::move(spec)),
      runtime_(runtime),
      options_(std::move(options)) {}

std::string Checkpointer::save(int64_t step, const TrainState& state) {
  wait();
  return checkpoint::save_step(io::real_file_system(), root_, checkpoint::live_state(state), spec_,
                               step, options_);
}

AsyncSave Checkpointer::save_async(int64_t step, const TrainState& state) {
  if (!background_)
    background_ = std::make_shared<checkpoint::BackgroundSaver>(io::real_file_system());
  return AsyncSave(
      background_->start(root_, checkpoint::live_state(state), spec_, step, options_));
}

void Checkpointer::wait() {
  if (background_) background_->settle(*runtime_.mesh().communicator());
}

std::optional<int64_t> Checkpointer::load_latest(TrainState& state) {
  wait();
  auto report = checkpoint::load_newest(io::real_file_system(), root_,
                                        checkpoint::live_state(state), spec_, options_.load());
  if (!report) return std::nullopt;
  report_ = std::move(*report);
  return report_.step;
}

}  // namespace tessera
