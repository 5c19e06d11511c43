// Gradient clipping by the norm over all ranks' gradients.
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "fsdp/engine.h"
#include "tessera/error.h"

namespace tessera::fsdp {
namespace {

// The same operations in the same order as torch::nn::utils::clip_grad_norm_, so that one rank gets
// its bits; empty shards are left out (the infinity norm of nothing does not exist).
double local_norm(const std::vector<torch::Tensor>& grads, double norm_type) {
  std::vector<torch::Tensor> norms;
  for (const torch::Tensor& grad : grads) {
    if (grad.numel() == 0) continue;
    norms.push_back(std::isinf(norm_type) ? grad.abs().max() : grad.norm(norm_type));
  }
  if (norms.empty()) return 0.0;
  for (torch::Tensor& norm : norms) norm = norm.to(norms[0].scalar_type());
  if (norms.size() == 1) return norms[0].item<double>();
  const torch::Tensor stacked = torch::stack(norms);
  return (std::isinf(norm_type) ? stacked.max() : stacked.norm(norm_type)).item<double>();
}

}  // namespace

double Engine::clip_grad_norm(double max_norm, double norm_type) {
  torch::NoGradGuard no_grad;
  if (!(norm_type > 0)) throw UsageError("clip_grad_norm: the norm type must be above 0, not " + std::to_string(norm_type));
  std::vector<torch::Tensor> grads;
  for (const auto& param : params_) {
    if (param->leaf.grad().defined()) grads.push_back(param->leaf.grad());
  }
  double norm = local_norm(grads, norm_type);
  if (mesh_.world_size() > 1) {
    const bool is_max = std::isinf(norm_type);
    torch::Tensor total = torch::full({1}, is_max ? norm : std::pow(norm, norm_type), torch::kFloat64).to(mesh_.device());
    comm_->all_reduce(total, is_max ? comm::ReduceOp::kMax : comm::ReduceOp::kSum);
    norm = is_max ? total.item<double>() : std::pow(total.item<double>(), 1.0 / norm_type);
  }
  if (grads.empty()) return norm;
  const auto dtype = grads[0].scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  const torch::Tensor coefficient = torch::clamp(max_norm / (torch::full({}, norm, dtype) + 1e-6), std::nullopt, 1.0);
  for (torch::Tensor& grad : grads) grad.mul_(coefficient);
  return norm;
}

}  // namespace tessera::fsdp
