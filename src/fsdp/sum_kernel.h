// One pass over the ranks' gradient segments: out = sum_r(weight_r * source_r) / divisor, summed in
// rank order. Cost: reads sources.size() x n, writes n; out stays in cache while it is summed.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <vector>

namespace tessera::fsdp {

struct SumSource {
  const std::byte* data;
  double weight;
};

void weighted_mean(torch::Tensor& out, const std::vector<SumSource>& sources, double divisor);

}  // namespace tessera::fsdp
