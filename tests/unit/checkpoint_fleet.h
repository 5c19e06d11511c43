// A model spread over simulated ranks, without fsdp: parameters of awkward shapes whose elements
// are all different, cut into rows in a chosen way, and gradients that are a function of step and
// element, so that every world size trains to the same numbers.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpointer.h"
#include "checkpoint/live_state.h"
#include "checkpoint/load.h"
#include "checkpoint/optim_state.h"
#include "checkpoint/save.h"
#include "support/thread_ranks.h"

namespace tessera::checkpoint {

using torch::Tensor;
using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<Tensor>)>;

struct ParameterSpec {
  std::string name;
  std::vector<int64_t> shape;
  torch::ScalarType dtype = torch::kFloat;
  bool trainable = true;
  bool used = true;  // gets gradients
  std::vector<std::string> aliases = {};
};

inline std::vector<ParameterSpec> awkward_model() {
  return {{"embed.weight", {53, 6}, torch::kFloat, true, true, {"head.weight"}},
          {"a.weight", {7, 5}},
          {"a.bias", {7}},
          {"row", {1, 17}},
          {"scale", {}},
          {"wide", {3, 4, 2}},
          {"empty", {0, 4}},
          {"frozen", {5, 3}, torch::kFloat, false},
          {"codes", {7, 3}, torch::kByte, false},
          {"unused.weight", {4, 2}, torch::kFloat, true, false}};
}

// Every element of every parameter is another number; all are exact in float.
inline Tensor full_value(const ParameterSpec& spec, size_t index) {
  const Tensor order =
      torch::arange(c10::multiply_integers(spec.shape), torch::kDouble).reshape(spec.shape);
  if (!c10::isFloatingType(spec.dtype)) return order.remainder(251).to(spec.dtype);
  return ((order + static_cast<double>(index) * 1000) / 256 - 2).to(spec.dtype);
}

inline Tensor full_gradient(const ParameterSpec& spec, size_t index, int64_t step) {
  const Tensor order =
      torch::arange(c10::multiply_integers(spec.shape), torch::kDouble).reshape(spec.shape);
  return torch::sin(order * 0.7 + static_cast<double>(index) + static_cast<double>(step) * 1.3)
      .to(spec.dtype);
}

// Rows [begin, end) of rank r of w; 0-dim parameters count as one row.
using Split = std::function<std::pair<int64_t, int64_t>(int64_t rows, int rank, int world)>;

inline std::pair<int64_t, int64_t> even_split(int64_t rows, int rank, int world) {
  const int64_t chunk = (rows + world - 1) / world;
  return {std::min(rows, chunk * rank), std::min(rows, chunk * (rank + 1))};
}
// The last rank has most, the first little or nothing.
inline std::pair<int64_t, int64_t> skewed_split(int64_t rows, int rank, int world) {
  return {rows * rank * rank / (world * world), rows * (rank + 1) * (rank + 1) / (world * world)};
}

inline Tensor rows_of(const Tensor& full, const ShardedParameter& parameter) {
  if (full.dim() == 0)
    return parameter.row_begin < parameter.row_end ? full : full.reshape({1}).narrow(0, 0, 0);
  return full.narrow(0, parameter.row_begin, parameter.row_end - parameter.row_begin);
}

// One rank's part of the model with its optimizer.
struct FleetRank {
  FleetRank(std::vector<ParameterSpec> model, int rank, int world, const MakeOptimizer& make,
            const Split& split = even_split, double offset = 0)
      : specs(std::move(model)) {
    std::vector<Tensor> leaves;
    for (size_t i = 0; i < specs.size(); ++i) {
      const ParameterSpec& spec = specs[i];
      ShardedParameter parameter;
      parameter.fqn = spec.name;
      parameter.aliases = spec.aliases;
      parameter.shape = spec.shape;
      std::tie(parameter.row_begin, parameter.row_end) =
          split(spec.shape.empty() ? 1 : spec.shape[0], rank, world);
      Tensor value = full_value(spec, i);
      if (offset != 0) value = value.mul(offset).to(spec.dtype);
      parameter.leaf = rows_of(value, parameter).clone().set_requires_grad(spec.trainable);
      leaves.push_back(parameter.leaf);
      parameters.push_back(std::move(parameter));
    }
    buffers = {
        {"norm.mean", torch::arange(5, torch::kFloat) + (offset != 0 ? 99 : rank)},
        {"norm.count", torch::tensor(int64_t{41} + (offset != 0))},
        {"mask", torch::arange(6, torch::kDouble).reshape({2, 3}).t() * (offset != 0 ? 2 : 1)}};
    if (make) optimizer = make(leaves);
    generator =
        at::detail::createCPUGenerator(1000 + static_cast<uint64_t>(rank) + (offset != 0 ? 77 : 0));
  }

  void train(int64_t first_step, int64_t steps) {
    for (int64_t step = first_step; step < first_step + steps; ++step) {
      for (size_t i = 0; i < specs.size(); ++i) {
        if (!parameters[i].leaf.requires_grad() || !specs[i].used) continue;
        parameters[i].leaf.mutable_grad() =
            rows_of(full_gradient(specs[i], i, step), parameters[i]).clone();
      }
      optimizer->step();
    }
  }

  LiveState live(comm::Communicator& communicator) {
    LiveState state;
    state.parameters = parameters;
    state.buffers = buffers;
    state.communicator = &communicator;
    state.optimizer = optimizer.get();
    state.generator = generator;
    return state;
  }

  const ShardedParameter& parameter(const std::string& name) const {
    for (const ShardedParameter& candidate : parameters)
      if (candidate.fqn == name) return candidate;
    throw Error("no parameter " + name);
  }
  // The live state of a parameter; empty where it has none.
  std::map<std::string, c10::IValue> state(const std::string& name) const {
    std::map<std::string, c10::IValue> out;
    const auto found = optimizer->state().find(parameter(name).leaf.unsafeGetTensorImpl());
    if (found != optimizer->state().end())
      for (const auto& [key, value] : OptimStateSerializer::read(*found->second, name))
        out[key] = value;
    return out;
  }

  std::vector<ParameterSpec> specs;
  std::vector<ShardedParameter> parameters;
  std::vector<NamedBuffer> buffers;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  at::Generator generator;
};

template <typename Optimizer, typename Options>
MakeOptimizer make_optimizer(Options options) {
  return [options](std::vector<Tensor> parameters) {
    return std::make_unique<Optimizer>(std::move(parameters), options);
  };
}

// Parameters and optimizer state of `actual` are the rows of `expected`, which is unsharded or the
// same part; with a tolerance of 0, bit for bit.
inline void expect_same_state(const FleetRank& actual, const FleetRank& expected,
                              double tolerance = 0) {
  const auto expect_close = [&](const Tensor& a, const Tensor& b, const std::string& what) {
    ASSERT_EQ(a.sizes(), b.sizes()) << what;
    ASSERT_EQ(a.scalar_type(), b.scalar_type()) << what;
    if (tolerance == 0)
      EXPECT_TRUE(torch::equal(a, b)) << what << "\n" << a << "\n" << b;
    else
      EXPECT_TRUE(torch::allclose(a.to(torch::kDouble), b.to(torch::kDouble), tolerance, tolerance))
          << what;
  };
  for (size_t i = 0; i < expected.parameters.size(); ++i) {
    const ShardedParameter& mine = actual.parameters[i];
    const std::string& name = mine.fqn;
    const ShardedParameter& other = expected.parameters[i];
    const Tensor& full = other.leaf;
    const bool same_part = other.row_begin == mine.row_begin && other.row_end == mine.row_end;
    const auto part = [&](const Tensor& whole) { return same_part ? whole : rows_of(whole, mine); };
    expect_close(mine.leaf.detach(), part(full.detach()), name);
    if (!expected.optimizer || !actual.optimizer) continue;
    const auto want = expected.state(name), have = actual.state(name);
    ASSERT_EQ(have.size(), want.size()) << "state of " << name;
    for (const auto& [key, value] : want) {
      const std::string what = "state " + key + " of " + name;
      ASSERT_TRUE(have.contains(key)) << what;
      const c10::IValue& found = have.at(key);
      ASSERT_EQ(found.tagKind(), value.tagKind()) << what;
      if (!value.isTensor()) {
        EXPECT_EQ(found, value) << what;
        continue;
      }
      const Tensor& tensor = value.toTensor();
      // A 0-dim parameter is one row.
      const int64_t rows = full.dim() == 0 ? 1 : full.size(0);
      const bool by_row =
          tensor.sizes() == full.sizes() || (tensor.dim() >= 1 && tensor.size(0) == rows);
      expect_close(found.toTensor(), by_row ? part(tensor) : tensor, what);
    }
  }
}

inline void expect_no_errors(const std::vector<std::exception_ptr>& errors) {
  for (size_t rank = 0; rank < errors.size(); ++rank)
    EXPECT_EQ(test::message_of(errors[rank]), "") << "rank " << rank;
}

}  // namespace tessera::checkpoint
