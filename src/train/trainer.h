// One training run: set up, resumed, stepped to its end or to a stop signal, saved.
//
// Threads: one. A step makes two small exchanges beside those of sharding: the loss, the stop flag.
#pragma once

#include <tessera/fsdp.h>
#include <tessera/runtime.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "metrics.h"
#include "options.h"
#include "progress.h"
#include "run_checkpoints.h"
#include "task.h"

namespace tessera::train {

class Trainer {
 public:
  // Builds data, model and optimizer and loads the newest checkpoint. [collective]
  Trainer(const TrainOptions& options, const Runtime& runtime);

  // Returns the exit code. [collective]
  int run();

 private:
  void shard();
  void resume();
  void step();
  double clip_gradients();
  void record(double loss, std::optional<double> grad_norm, double seconds);
  void append_metrics(const StepMetrics& metrics);
  void save();
  void finish_save();
  bool save_is_due() const;
  std::string save_state() const;
  void save_final_parameters();
  void say(const std::string& line);
  bool output_lost() const;
  void summarize(int64_t first_step, bool interrupted);
  void report_benchmark();

  const TrainOptions& options_;
  const Runtime& runtime_;
  int64_t resident_at_start_;
  std::unique_ptr<Task> task_;
  int64_t batch_ = 0;
  BatchPart part_;
  std::optional<Sharded> sharded_;  // empty: the unwrapped module
  std::vector<torch::Tensor> parameters_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::optional<SampleOrder> order_;
  std::optional<RunCheckpoints> checkpoints_;
  std::optional<MetricsFile> metrics_;  // rank 0
  std::optional<Progress> progress_;    // rank 0

  int64_t step_ = 0;
  int64_t position_ = 0;
  std::optional<int64_t> saved_step_;
  std::string saved_path_;
  std::optional<AsyncSave> running_save_;
  std::optional<double> first_loss_;
  double last_loss_ = 0;
  bool warned_not_finite_ = false;
  std::vector<double> step_seconds_;
};

}  // namespace tessera::train
