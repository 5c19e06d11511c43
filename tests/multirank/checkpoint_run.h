// A model with everything that makes checkpoints hard, sharded over real processes, with an optimizer,
// and a directory that they share.
#pragma once

#include <stdlib.h>
#include <torch/torch.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "support/multirank.h"
#include "tessera/checkpoint.h"

namespace tessera::test {

using torch::Tensor;

struct NetImpl : torch::nn::Module {
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear a{nullptr}, b{nullptr}, frozen{nullptr}, unused{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  Tensor scale, codes;

  // `width` 12 makes everything small, 256 most of it larger than what is staged at once.
  explicit NetImpl(int64_t width = 12) {
    table = register_module("table", torch::nn::Embedding(53, width));
    a = register_module("a", torch::nn::Linear(width, width + 5));
    norm = register_module("norm", torch::nn::BatchNorm1d(width + 5));
    b = register_module("b", torch::nn::Linear(width + 5, width));
    frozen = register_module("frozen", torch::nn::Linear(width, width));
    unused = register_module("unused", torch::nn::Linear(3, 1));
    scale = register_parameter("scale", torch::tensor(1.5));
    codes = register_parameter("codes", torch::arange(21, torch::kInt64).view({7, 3}), false);
    for (Tensor& parameter : frozen->parameters()) parameter.set_requires_grad(false);
  }
  Tensor forward(const Tensor& ids) {
    Tensor x = norm->forward(torch::tanh(a->forward(table->forward(ids))));
    x = frozen->forward(torch::dropout(b->forward(x), 0.1, is_training())) * scale;
    return at::linear(x, table->weight).log_softmax(-1).pow(2).mean();
  }
};
TORCH_MODULE(Net);

inline FsdpOptions units() {
  return FsdpOptions().unit_if([](const std::string& fqn, torch::nn::Module&) {
    return fqn == "a" || fqn == "b" || fqn == "frozen";
  });
}

using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<Tensor>)>;

// A model, sharded, with its optimizer.
struct ShardedRun {
  ShardedRun(const MakeOptimizer& make, uint64_t seed, int64_t width = 12) {
    torch::manual_seed(seed);
    net = Net(width);
    sharded = std::make_unique<Sharded>(fully_shard(*net, runtime().mesh(), units()));
    optimizer = make(net->parameters());
    torch::manual_seed(seed + 100 + static_cast<uint64_t>(rank()));
  }
  double step(int64_t number) {
    const double loss = backward(number);
    sharded->clip_grad_norm(1.0);
    optimizer->step();
    return loss;
  }
  double backward(int64_t number) {
    const Tensor all = (torch::arange(60, torch::kInt64) * 7 + number * 13).remainder(53);
    const Tensor loss = net->forward(all.slice(0, rank(), c10::nullopt, world_size()));
    optimizer->zero_grad();
    loss.backward();
    return loss.item<double>();
  }
  Net net{nullptr};
  std::unique_ptr<Sharded> sharded;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

// The same directory on every rank, removed at the end.
class SharedDirectory {
 public:
  SharedDirectory() {
    std::string mine;
    if (rank() == 0) {
      std::string pattern =
          (std::filesystem::temp_directory_path() / "tessera-ckpt-XXXXXX").string();
      if (::mkdtemp(pattern.data()) != nullptr) mine = pattern;
    }
    path_ = runtime().all_gather_bytes(mine)[0];
  }
  ~SharedDirectory() {
    runtime().barrier();
    std::error_code ignored;
    if (rank() == 0) std::filesystem::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

template <typename Optimizer, typename Options>
MakeOptimizer make_with(Options options) {
  return [options](std::vector<Tensor> parameters) {
    return std::make_unique<Optimizer>(std::move(parameters), options);
  };
}

}  // namespace tessera::test
