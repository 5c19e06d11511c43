#include "fsdp/sum_kernel.h"

#include <torch/torch.h>

#include <algorithm>

namespace tessera::fsdp {
namespace {

constexpr int64_t kBlock = 4096;  // elements that stay in the first-level cache between passes

template <typename T>
void mean_block(T* __restrict out, const std::vector<SumSource>& sources, int64_t begin, int64_t count, T divisor) {
  for (size_t s = 0; s < sources.size(); ++s) {
    const T* __restrict in = reinterpret_cast<const T*>(sources[s].data) + begin;
    const T weight = static_cast<T>(sources[s].weight);
    if (s == 0 && weight == T(1)) {
      for (int64_t i = 0; i < count; ++i) out[i] = in[i];
    } else if (s == 0) {
      for (int64_t i = 0; i < count; ++i) out[i] = weight * in[i];
    } else if (weight == T(1)) {
      for (int64_t i = 0; i < count; ++i) out[i] += in[i];
    } else {
      for (int64_t i = 0; i < count; ++i) out[i] += weight * in[i];
    }
  }
  if (divisor == T(1)) return;
  for (int64_t i = 0; i < count; ++i) out[i] /= divisor;
}

template <typename T>
void mean(torch::Tensor& out, const std::vector<SumSource>& sources, double divisor) {
  T* data = out.data_ptr<T>();
  for (int64_t begin = 0; begin < out.numel(); begin += kBlock) {
    mean_block(data + begin, sources, begin, std::min(kBlock, out.numel() - begin), static_cast<T>(divisor));
  }
}

}  // namespace

void weighted_mean(torch::Tensor& out, const std::vector<SumSource>& sources, double divisor) {
  if (sources.empty()) {
    out.zero_();
  } else if (out.scalar_type() == torch::kFloat) {
    mean<float>(out, sources, divisor);
  } else if (out.scalar_type() == torch::kDouble) {
    mean<double>(out, sources, divisor);
  } else {
    out.zero_();
    for (const SumSource& source : sources) {
      const torch::Tensor in = torch::from_blob(const_cast<std::byte*>(source.data), out.sizes(), out.options());
      out.add_(in, source.weight);
    }
    out.div_(divisor);
  }
}

}  // namespace tessera::fsdp
