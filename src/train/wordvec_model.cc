#include "wordvec_model.h"

#include <torch/nn/init.h>

namespace tessera::train {

WordvecImpl::WordvecImpl(const WordvecOptions& options) {
  words_ = register_module("words", torch::nn::Embedding(options.vocab_size, options.dim));
  contexts_ = register_module("contexts", torch::nn::Embedding(options.vocab_size, options.dim));
  const double bound = 0.5 / static_cast<double>(options.dim);
  torch::nn::init::uniform_(words_->weight, -bound, bound);
  torch::nn::init::zeros_(contexts_->weight);
}

torch::Tensor WordvecImpl::forward(const torch::Tensor& centers, const torch::Tensor& contexts) {
  const torch::Tensor word = words_->forward(centers).unsqueeze(2);
  return torch::bmm(contexts_->forward(contexts), word).squeeze(2);
}

}  // namespace tessera::train
