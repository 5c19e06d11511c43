// LibTorch's Adagrad makes its states in the constructor only and fails at a step without them
// (https://github.com/pytorch/pytorch/issues/87706), so a group added later, or a parameter that a
// checkpoint leaves out, would end the run.
#pragma once

#include <torch/optim/optimizer.h>

namespace tessera::checkpoint {

// Gives every parameter of an Adagrad's groups that has no state the one that the constructor would
// have made, from its group's options; existing states and other optimizers stay as they are.
void complete_adagrad(torch::optim::Optimizer& optimizer);

}  // namespace tessera::checkpoint
