// The stock LibTorch optimizers that tessera-train offers.
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <vector>

#include "options.h"

namespace tessera::train {

std::unique_ptr<torch::optim::Optimizer> make_optimizer(OptimizerKind kind, double lr,
                                                        std::vector<torch::Tensor> parameters);

// Sets the rate of every parameter group.
void set_learning_rate(torch::optim::Optimizer& optimizer, double lr);

// Tensors of the parameter's size that the optimizer keeps for it.
int64_t state_tensors_per_parameter(OptimizerKind kind);

}  // namespace tessera::train
