#include "gpt_model.h"

#include <torch/nn/functional/activation.h>
#include <torch/nn/init.h>

#include <cmath>

namespace tessera::train {

namespace F = torch::nn::functional;

BlockImpl::BlockImpl(const GptOptions& options) : heads_(options.heads) {
  const int64_t width = options.width;
  const torch::nn::LayerNormOptions norm({width});
  attention_norm_ = register_module("attention_norm", torch::nn::LayerNorm(norm));
  qkv_ = register_module("qkv", torch::nn::Linear(width, 3 * width));
  attention_out_ = register_module("attention_out", torch::nn::Linear(width, width));
  mlp_norm_ = register_module("mlp_norm", torch::nn::LayerNorm(norm));
  mlp_in_ = register_module("mlp_in", torch::nn::Linear(width, 4 * width));
  mlp_out_ = register_module("mlp_out", torch::nn::Linear(4 * width, width));
}

torch::Tensor BlockImpl::forward(const torch::Tensor& hidden) {
  const torch::Tensor attended = hidden + attend(attention_norm_->forward(hidden));
  torch::Tensor inner = mlp_in_->forward(mlp_norm_->forward(attended));
  inner = F::gelu(inner, F::GELUFuncOptions().approximate("tanh"));
  return attended + mlp_out_->forward(inner);
}

torch::Tensor BlockImpl::attend(const torch::Tensor& hidden) {
  const int64_t samples = hidden.size(0);
  const int64_t length = hidden.size(1);
  const int64_t width = hidden.size(2);
  const torch::Tensor qkv = qkv_->forward(hidden)
                                .view({samples, length, 3, heads_, width / heads_})
                                .permute({2, 0, 3, 1, 4});
  const torch::Tensor mixed =
      at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, /*dropout_p=*/0.0,
                                       /*is_causal=*/true);
  return attention_out_->forward(mixed.transpose(1, 2).reshape({samples, length, width}));
}

GptImpl::GptImpl(const GptOptions& options) {
  tokens_ = register_module("tokens", torch::nn::Embedding(options.vocab, options.width));
  positions_ = register_module("positions", torch::nn::Embedding(options.context, options.width));
  blocks_ = register_module("blocks", torch::nn::ModuleList());
  for (int64_t layer = 0; layer < options.layers; ++layer) blocks_->push_back(Block(options));
  norm_ =
      register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.width})));
  initialize(options.layers);
}

// As GPT-2: normal values, the projections into the residual stream smaller by their number.
void GptImpl::initialize(int64_t layers) {
  constexpr double kDeviation = 0.02;
  const double residual = kDeviation / std::sqrt(2.0 * static_cast<double>(layers));
  const auto fill = [](torch::nn::LinearImpl& linear, double deviation) {
    torch::nn::init::normal_(linear.weight, 0.0, deviation);
    torch::nn::init::zeros_(linear.bias);
  };
  torch::nn::init::normal_(tokens_->weight, 0.0, kDeviation);
  torch::nn::init::normal_(positions_->weight, 0.0, kDeviation);
  for (const auto& child : *blocks_) {
    auto& block = *child->as<BlockImpl>();
    fill(*block.qkv_, kDeviation);
    fill(*block.attention_out_, residual);
    fill(*block.mlp_in_, kDeviation);
    fill(*block.mlp_out_, residual);
  }
}

torch::Tensor GptImpl::forward(const torch::Tensor& tokens) {
  const torch::Tensor positions = torch::arange(tokens.size(1), tokens.options());
  torch::Tensor hidden = tokens_->forward(tokens) + positions_->forward(positions);
  for (const auto& block : *blocks_) hidden = block->as<BlockImpl>()->forward(hidden);
  return torch::linear(norm_->forward(hidden), tokens_->weight);
}

}  // namespace tessera::train
