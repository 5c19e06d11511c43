#include "run_checkpoints.h"

#include <c10/util/StringUtil.h>

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

std::string describe(const ItemValue& value) {
  return std::visit([](const auto& held) { return c10::str(held); }, value);
}

}  // namespace

RunCheckpoints::RunCheckpoints(const TrainOptions& options, const Runtime& runtime,
                               const Sharded& sharded, torch::optim::Optimizer& optimizer,
                               Identity identity, int64_t& position)
    : identity_(std::move(identity)),
      state_(sharded, optimizer),
      checkpointer_(options.checkpoint_dir, spec_of(options), runtime,
                    CheckpointerOptions().keep_last(options.keep_last)) {
  state_.item(
      "position", [&position] { return ItemValue(position); },
      [&position](const ItemValue& value) { position = std::get<int64_t>(value); });
  for (const auto& [name, value] : identity_) {
    state_.item(
        name, [held = value] { return held; },
        [this, key = name](const ItemValue& stored) { stored_[key] = stored; });
  }
}

std::optional<int64_t> RunCheckpoints::resume() {
  std::optional<int64_t> step;
  together([&] { step = checkpointer_.load_latest(state_); });
  if (step) require_same_run(checkpointer_.last_report().path);
  return step;
}

// The order of samples is computed from these values: with others, "the samples that were left"
// would mean nothing.
void RunCheckpoints::require_same_run(const std::string& path) const {
  std::string differences;
  for (const auto& [name, value] : identity_) {
    const auto found = stored_.find(name);
    if (found != stored_.end() && found->second == value) continue;
    const std::string stored = found == stored_.end() ? "nothing" : describe(found->second);
    differences += c10::str(differences.empty() ? "" : ", ", name, " is ", describe(value),
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

}  // namespace tessera::train
