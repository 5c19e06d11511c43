// What every multi-rank test uses: one Runtime for the process, and comparisons with an unsharded
// reference that each rank computes by itself.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>

#include "checkpoint/archive_values.h"
#include "tessera/fsdp.h"
#include "tessera/runtime.h"

namespace tessera::test {

const Runtime& runtime();
inline int rank() { return runtime().rank(); }
inline int world_size() { return runtime().world_size(); }
// Models and inputs are made on the CPU, so that every device gets the same numbers, and moved here.
inline torch::Device device() { return runtime().device(); }
inline torch::Tensor here(const torch::Tensor& tensor) { return tensor.to(device()); }
// Two runs of the same operators have equal bits on the CPU; on a GPU some operators add in any order.
inline bool has_equal_bits() { return device().is_cpu(); }

// Largest |a - b| over elements, relative to the largest |b| (absolute where b is all zero).
inline double difference(const torch::Tensor& a, const torch::Tensor& b) {
  EXPECT_EQ(a.sizes(), b.sizes());
  if (a.numel() == 0) return 0;
  const double scale = b.abs().max().item<double>();
  return (a.to(torch::kDouble) - b.to(torch::kDouble)).abs().max().item<double>() / (scale > 0 ? scale : 1);
}

// The rows of a full tensor that a sharded parameter holds here.
inline torch::Tensor owned_rows(const ShardedParameter& parameter, const torch::Tensor& full) {
  if (full.dim() == 0) return parameter.leaf.dim() == 0 ? full : full.reshape({1}).narrow(0, 0, 0);
  return full.narrow(0, parameter.row_begin, parameter.row_end - parameter.row_begin);
}

// Gradients and values of `sharded` against an unwrapped twin; 0 tolerance means equal bits.
inline void expect_same_gradients(const Sharded& sharded, torch::nn::Module& reference, double tolerance,
                                  const std::string& what) {
  const auto named = reference.named_parameters();
  for (const ShardedParameter& parameter : sharded.parameters()) {
    const torch::Tensor expected = named[parameter.fqn].grad();
    const torch::Tensor actual = parameter.leaf.grad();
    ASSERT_EQ(actual.defined(), expected.defined()) << what << ": gradient of " << parameter.fqn;
    if (!expected.defined()) continue;
    EXPECT_LE(difference(actual, owned_rows(parameter, expected)), tolerance) << what << ": gradient of " << parameter.fqn;
  }
}

inline void expect_same_values(const Sharded& sharded, torch::nn::Module& reference, double tolerance,
                               const std::string& what) {
  torch::NoGradGuard no_grad;
  const auto named = reference.named_parameters();
  for (const ShardedParameter& parameter : sharded.parameters()) {
    EXPECT_LE(difference(parameter.leaf, owned_rows(parameter, named[parameter.fqn])), tolerance) << what << ": " << parameter.fqn;
  }
}

// Every value of the optimizer's state, whatever its keys, against the optimizer of the twin.
inline void expect_same_state(const Sharded& sharded, const torch::optim::Optimizer& optimizer, torch::nn::Module& reference,
                              const torch::optim::Optimizer& expected, double tolerance) {
  const auto named = reference.named_parameters();
  for (const ShardedParameter& parameter : sharded.parameters()) {
    const auto here = optimizer.state().find(parameter.leaf.unsafeGetTensorImpl());
    const auto there = expected.state().find(named[parameter.fqn].unsafeGetTensorImpl());
    ASSERT_EQ(here != optimizer.state().end(), there != expected.state().end()) << parameter.fqn;
    if (there == expected.state().end()) continue;
    const auto actual = checkpoint::values_of(*here->second);
    const auto wanted = checkpoint::values_of(*there->second);
    ASSERT_EQ(actual.size(), wanted.size()) << parameter.fqn;
    for (size_t i = 0; i < wanted.size(); ++i) {
      const std::string what = parameter.fqn + "." + wanted[i].first;
      ASSERT_EQ(actual[i].first, wanted[i].first) << what;
      if (!wanted[i].second.isTensor()) {
        EXPECT_TRUE(actual[i].second == wanted[i].second) << what;
        continue;
      }
      EXPECT_LE(difference(actual[i].second.toTensor(), owned_rows(parameter, wanted[i].second.toTensor())), tolerance) << what;
    }
  }
}

}  // namespace tessera::test
