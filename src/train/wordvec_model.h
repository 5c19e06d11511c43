// Skip-gram word vectors: a table of words and a table of contexts, scored by dot product.
//
// Gradients are dense, so that any optimizer works and Adagrad's `sum` has the size of the tables.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/pimpl.h>

#include "options.h"

namespace tessera::train {

class WordvecImpl : public torch::nn::Module {
 public:
  explicit WordvecImpl(const WordvecOptions& options);
  // centers (n), contexts (n, 1 + negatives) with the true context first -> (n, 1 + negatives)
  // scores.
  torch::Tensor forward(const torch::Tensor& centers, const torch::Tensor& contexts);

 private:
  torch::nn::Embedding words_{nullptr};
  torch::nn::Embedding contexts_{nullptr};
};
TORCH_MODULE(Wordvec);

}  // namespace tessera::train
