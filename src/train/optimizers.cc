#include "optimizers.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <utility>

namespace tessera::train {

namespace optim = torch::optim;

std::unique_ptr<optim::Optimizer> make_optimizer(OptimizerKind kind, double lr,
                                                 std::vector<torch::Tensor> parameters) {
  switch (kind) {
    case OptimizerKind::kSgd:
      return std::make_unique<optim::SGD>(std::move(parameters), optim::SGDOptions(lr));
    case OptimizerKind::kAdam:
      return std::make_unique<optim::Adam>(std::move(parameters), optim::AdamOptions(lr));
    case OptimizerKind::kAdamW:
      return std::make_unique<optim::AdamW>(std::move(parameters), optim::AdamWOptions(lr));
    case OptimizerKind::kAdagrad:
      return std::make_unique<optim::Adagrad>(std::move(parameters), optim::AdagradOptions(lr));
    case OptimizerKind::kRmsProp:
      return std::make_unique<optim::RMSprop>(std::move(parameters), optim::RMSpropOptions(lr));
  }
  TORCH_CHECK(false, "unknown optimizer kind");
}

void set_learning_rate(optim::Optimizer& optimizer, double lr) {
  for (optim::OptimizerParamGroup& group : optimizer.param_groups()) group.options().set_lr(lr);
}

int64_t state_tensors_per_parameter(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kSgd:
      return 0;
    case OptimizerKind::kAdam:
    case OptimizerKind::kAdamW:
      return 2;
    case OptimizerKind::kAdagrad:
    case OptimizerKind::kRmsProp:
      return 1;
  }
  return 0;
}

}  // namespace tessera::train
