#include "checkpoint/host_bytes.h"

#include <torch/torch.h>

namespace tessera::checkpoint {

HostBytes::HostBytes(const at::Tensor& tensor) {
  // Operators are not applied where they are not needed: on a sharded parameter they would count as
  // a use of it.
  torch::NoGradGuard no_grad;
  tensor_ = tensor;
  if (tensor_.is_conj()) tensor_ = tensor_.resolve_conj();
  if (tensor_.is_neg()) tensor_ = tensor_.resolve_neg();
  if (!tensor_.device().is_cpu()) tensor_ = tensor_.to(torch::kCPU);
  if (!tensor_.is_contiguous()) tensor_ = tensor_.contiguous();
  size_ = tensor_.nbytes();
  data_ = size_ > 0 ? tensor_.const_data_ptr() : nullptr;
}

}  // namespace tessera::checkpoint
