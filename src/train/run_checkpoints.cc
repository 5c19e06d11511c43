#include "run_checkpoints.h"

#include <c10/util/StringUtil.h>

#include <set>
#include <type_traits>

#include "failure.h"

namespace tessera::train {
namespace {

CkptSpec spec_of(const TrainOptions& options) {
  switch (options.kind) {
    case CheckpointKind::kSharded:
      return CkptSpec().kind(StateDictKind::kSharded);
    case CheckpointKind::kFull:
      return CkptSpec().kind(StateDictKind::kFull);
    case CheckpointKind::kLocal:
      return CkptSpec().kind(StateDictKind::kLocal);
  }
  return CkptSpec();
}

// Of the values in a run's identity, those that a flag of the same name gives.
std::string as_flag(const std::string& name) {
  static const std::set<std::string> flags = {"context", "heads",     "window",
                                              "seed",    "negatives", "optimizer"};
  return flags.contains(name) ? "--" + name : name;
}

std::string describe(const ItemValue& value) {
  return std::visit(
      [](const auto& held) -> std::string {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (std::is_arithmetic_v<Held> || std::is_same_v<Held, std::string>)
          return c10::str(held);
        else
          return "a list of values";
      },
      value);
}

}  // namespace

RunCheckpoints::RunCheckpoints(const TrainOptions& options, const Runtime& runtime,
                               const Sharded& sharded, torch::optim::Optimizer& optimizer,
                               Identity identity, int64_t& position)
    : root_(options.checkpoint_dir),
      runtime_(runtime),
      identity_(std::move(identity)),
      state_(sharded, optimizer),
      checkpointer_(options.checkpoint_dir, spec_of(options), runtime,
                    CheckpointerOptions().keep_last(options.keep_last).keep_every(options.keep_every)) {
  state_.item(
      "position", [&position] { return ItemValue(position); },
      [&position](const ItemValue& value) { position = std::get<int64_t>(value); });
  for (const auto& [name, value] : identity_) add_item(state_, name, value);
}

TrainState& RunCheckpoints::add_item(TrainState& state, const std::string& name,
                                     const ItemValue& value) {
  return state.item(
      name, [held = value] { return held; },
      [this, key = name](const ItemValue& stored) { stored_[key] = stored; });
}

std::optional<int64_t> RunCheckpoints::resume() {
  std::optional<int64_t> step;
  together([&] {
    try {
      step = checkpointer_.load_latest(state_);
    } catch (const LayoutError&) {
      look_for_another_run();
      throw;
    }
  });
  if (step) require_same_run(checkpointer_.last_report().path);
  return step;
}

// Tensors that do not fit are mostly the consequence of another flag, which is the better message.
// One item at a time, as one that the checkpoint lacks keeps the others from being loaded.
void RunCheckpoints::look_for_another_run() {
  const CkptSpec items_only = CkptSpec().with_model(false).with_optimizer(false).with_rng(false);
  Checkpointer reader(root_, items_only, runtime_);
  std::string path = root_;
  for (const auto& [name, value] : identity_) {
    TrainState one(state_.sharded());
    try {
      reader.load_latest(add_item(one, name, value));
      path = reader.last_report().path;
    } catch (const LayoutError&) {
    }
  }
  require_same_run(path);
}

// The order of samples, the loss and the step are computed from these values: with others, the run
// would go on as another one.
void RunCheckpoints::require_same_run(const std::string& path) const {
  std::string differences;
  for (const auto& [name, value] : identity_) {
    const auto found = stored_.find(name);
    if (found != stored_.end() && found->second == value) continue;
    const std::string stored = found == stored_.end() ? "nothing" : describe(found->second);
    differences += c10::str(differences.empty() ? "" : ", ", as_flag(name), " is ", describe(value),
                            " and was ", stored);
  }
  if (differences.empty()) return;
  throw AgreedFailure(c10::str("the checkpoint ", path, " is of another run: ", differences,
                               "; use the same flags and text, another --checkpoint-dir, or "
                               "--no-resume"),
                      kBadUsage);
}

std::string RunCheckpoints::save(int64_t step) {
  std::string path;
  together([&] { path = checkpointer_.save(step, state_); });
  return path;
}

AsyncSave RunCheckpoints::save_async(int64_t step) {
  std::optional<AsyncSave> save;
  together([&] { save = checkpointer_.save_async(step, state_); });
  return *save;
}

void RunCheckpoints::wait() {
  together([&] { checkpointer_.wait(); });
}

}  // namespace tessera::train
