// The checkpoints of one training run: what belongs to its state, and whether a stored one fits.
//
// Threads: one. Cost: that of Checkpointer; nothing a step.
// Errors: AgreedFailure where a checkpoint cannot be written, or is of another run.
#pragma once

#include <tessera/checkpoint.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "options.h"

namespace tessera::train {

class RunCheckpoints {
 public:
  using Identity = std::vector<std::pair<std::string, ItemValue>>;

  // `position` is the number of samples consumed: saved, and set by `resume`. It, the
  // runtime and the optimizer must outlive this object.
  RunCheckpoints(const TrainOptions& options, const Runtime& runtime, const Sharded& sharded,
                 torch::optim::Optimizer& optimizer, Identity identity, int64_t& position);
  RunCheckpoints(const RunCheckpoints&) = delete;
  RunCheckpoints& operator=(const RunCheckpoints&) = delete;

  // Loads the newest checkpoint; its step, or nothing where there is none. [collective]
  std::optional<int64_t> resume();
  // Returns the directory. [collective]
  std::string save(int64_t step);
  // Leaves the writing to the background; the next save, or `wait`, tells how it ended. [collective]
  AsyncSave save_async(int64_t step);
  void wait();  // [collective]

  const LoadReport& load_report() const { return checkpointer_.last_report(); }

 private:
  TrainState& add_item(TrainState& state, const std::string& name, const ItemValue& value);
  void look_for_another_run();
  void require_same_run(const std::string& path) const;

  std::string root_;
  const Runtime& runtime_;

  Identity identity_;
  std::map<std::string, ItemValue> stored_;
  TrainState state_;
  Checkpointer checkpointer_;
};

}  // namespace tessera::train
