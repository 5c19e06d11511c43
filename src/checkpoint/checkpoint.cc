#include "tessera/checkpoint.h"

#include <ATen/CPUGeneratorImpl.h>

#include "checkpoint/background_save.h"
#include "checkpoint/checkpointer.h"
#include "checkpoint/context.h"
#include "checkpoint/load.h"
#include "checkpoint/optim_state.h"
#include "checkpoint/run_state.h"
#include "checkpoint/save.h"
#include "checkpoint/state_keys.h"
#include "tessera/error.h"

namespace tessera {

namespace checkpoint {

namespace {

void add_model(LiveState& live, const std::string& prefix, const TrainState::Model& model) {
  for (ShardedParameter parameter : model.sharded.parameters()) {
    parameter.fqn.insert(0, prefix);
    for (std::string& alias : parameter.aliases) alias.insert(0, prefix);
    live.parameters.push_back(std::move(parameter));
  }
  for (NamedBuffer buffer : model.sharded.buffers()) {
    buffer.fqn.insert(0, prefix);
    live.buffers.push_back(std::move(buffer));
  }
  if (model.optimizer)
    live.more_optimizers.emplace(prefix.substr(0, prefix.size() - 1), model.optimizer);
}

}  // namespace

LiveState live_state(const TrainState& state) {
  LiveState live;
  live.parameters = state.sharded().parameters();
  live.buffers = state.sharded().buffers();
  live.communicator = state.sharded().mesh().communicator().get();
  live.optimizer = state.optimizer();
  for (const auto& [name, model] : state.models()) add_model(live, name + ".", model);
  live.items = state.items();
  live.tensors = state.tensors();
  live.schedulers = state.schedulers();
  live.factory = state.state_factory();
  live.generator = at::detail::getDefaultCPUGenerator();
  const torch::Device device = state.sharded().mesh().device();
  if (device.is_cuda()) live.device_generator = at::globalContext().defaultGenerator(device);
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

namespace {

CheckpointerOptions checked(CheckpointerOptions options, const CkptSpec& spec) {
  const SaveOptions& save = options.save();
  if (options.recycle() &&
      (spec.kind() == StateDictKind::kFull || !save.sync() || save.through_rank0()))
    throw UsageError(
        "CheckpointerOptions::recycle is for kind sharded or local, with sync and without "
        "through_rank0");
  return options;
}

}  // namespace

Checkpointer::Checkpointer(std::string root, CkptSpec spec, const Runtime& runtime,
                           CheckpointerOptions options)
    : root_(std::move(root)),
      spec_(std::move(spec)),
      runtime_(runtime),
      options_(checked(std::move(options), spec_)),
      run_(std::make_shared<checkpoint::RunState>(root_)) {}

std::string Checkpointer::save(int64_t step, const TrainState& state) {
  wait();
  return checkpoint::save_step(io::real_file_system(), root_, checkpoint::live_state(state), spec_,
                               step, options_, run_.get());
}

AsyncSave Checkpointer::save_async(int64_t step, const TrainState& state) {
  if (!background_)
    background_ = std::make_shared<checkpoint::BackgroundSaver>(io::real_file_system());
  return AsyncSave(
      background_->start(root_, checkpoint::live_state(state), spec_, step, options_, run_.get()));
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
