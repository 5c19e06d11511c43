#include "checkpoint/adagrad_state.h"

#include <torch/torch.h>

namespace tessera::checkpoint {

void complete_adagrad(torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<torch::optim::Adagrad*>(&optimizer) == nullptr) return;
  for (const auto& group : optimizer.param_groups()) {
    const auto& options = static_cast<const torch::optim::AdagradOptions&>(group.options());
    for (const torch::Tensor& leaf : group.params()) {
      auto& slot = optimizer.state()[leaf.unsafeGetTensorImpl()];
      if (slot) continue;
      auto state = std::make_unique<torch::optim::AdagradParamState>();
      state->sum(torch::full(leaf.sizes(), options.initial_accumulator_value(),
                             leaf.options().requires_grad(false)));
      slot = std::move(state);
    }
  }
}

}  // namespace tessera::checkpoint
