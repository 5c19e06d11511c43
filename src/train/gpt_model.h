// A GPT in the manner of GPT-2: pre-norm blocks, learned positions, output tied to the embedding.
//
// Nothing here knows of sharding. No dropout: a sample's loss is the same on any rank.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include "options.h"

namespace tessera::train {

class BlockImpl : public torch::nn::Module {
 public:
  explicit BlockImpl(const GptOptions& options);
  torch::Tensor forward(const torch::Tensor& hidden);

 private:
  friend class GptImpl;
  torch::Tensor attend(const torch::Tensor& hidden);

  int64_t heads_;
  torch::nn::LayerNorm attention_norm_{nullptr};
  torch::nn::Linear qkv_{nullptr};
  torch::nn::Linear attention_out_{nullptr};
  torch::nn::LayerNorm mlp_norm_{nullptr};
  torch::nn::Linear mlp_in_{nullptr};
  torch::nn::Linear mlp_out_{nullptr};
};
TORCH_MODULE(Block);

class GptImpl : public torch::nn::Module {
 public:
  explicit GptImpl(const GptOptions& options);
  // (samples, length) token ids -> (samples, length, vocab) logits.
  torch::Tensor forward(const torch::Tensor& tokens);

 private:
  void initialize(int64_t layers);

  torch::nn::Embedding tokens_{nullptr};
  torch::nn::Embedding positions_{nullptr};
  torch::nn::ModuleList blocks_{nullptr};
  torch::nn::LayerNorm norm_{nullptr};
};
TORCH_MODULE(Gpt);

}  // namespace tessera::train
