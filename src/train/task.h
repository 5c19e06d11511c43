// What the training loop needs to know of a model and its data.
//
// Threads: one. Cost: `mean_loss` is the forward pass.
#pragma once

#include <tessera/checkpoint.h>
#include <tessera/fsdp.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "options.h"
#include "sampler.h"

namespace tessera::train {

class Task {
 public:
  virtual ~Task() = default;

  virtual torch::nn::Module& module() = 0;
  virtual FsdpOptions fsdp_options() const = 0;

  virtual int64_t sample_count() const = 0;  // of one epoch
  virtual int64_t tokens_per_sample() const = 0;
  // Mean over the samples, of which there is at least one; a 0-dim tensor with a graph.
  virtual torch::Tensor mean_loss(const std::vector<SampleRef>& samples) = 0;

  // Values that a resumed run must share, or its samples or the function of the same parameters
  // would be others: sizes, text.
  virtual std::vector<std::pair<std::string, ItemValue>> identity() const = 0;
};

// Builds the model with values drawn from the seed, and its data. Reads the text.
std::unique_ptr<Task> make_task(const TrainOptions& options, torch::Device device);

}  // namespace tessera::train
