// Parameters of several dtypes in one unit, half precision, and operators that update leaves in lists.
#include <torch/torch.h>

#include "support/multirank.h"

namespace tessera::test {
namespace {

using torch::Tensor;

// Two equal values have their own bits as mean; of more, the mean is rounded.
double exact(double otherwise) { return world_size() <= 2 && has_equal_bits() ? 0 : otherwise; }

struct MixedImpl : torch::nn::Module {
  torch::nn::Linear half{nullptr}, single{nullptr}, wide{nullptr};
  Tensor mask, codes;
  MixedImpl() {
    half = register_module("half", torch::nn::Linear(13, 11));
    single = register_module("single", torch::nn::Linear(11, 7));
    wide = register_module("wide", torch::nn::Linear(7, 5));
    half->to(torch::kBFloat16);
    wide->to(torch::kDouble);
    mask = register_parameter("mask", torch::tensor({true, false, true, true, false}), false);
    codes = register_parameter("codes", torch::arange(35, torch::kUInt8).view({5, 7}), false);
    to(device());
  }
  Tensor forward(Tensor x) {
    x = torch::tanh(half->forward(x.to(torch::kBFloat16))).to(torch::kFloat);
    x = torch::tanh(single->forward(x)).to(torch::kDouble);
    return (wide->forward(x) * mask + codes.sum(1)).pow(2).mean();
  }
};
TORCH_MODULE(Mixed);

// BL-37, BL-41: integer and bool parameters are carried, bf16 gradients are summed in fp32.
TEST(Dtypes, MixedInOneUnit) {
  torch::manual_seed(1);
  Mixed plain;
  torch::manual_seed(1);
  Mixed wrapped;
  Sharded sharded = fully_shard(*wrapped, runtime().mesh(), FsdpOptions().debug_overwrite_freed(true));
  torch::optim::SGD plain_optimizer(plain->parameters(), torch::optim::SGDOptions(1e-3).momentum(0.9));
  torch::optim::SGD optimizer(wrapped->parameters(), torch::optim::SGDOptions(1e-3).momentum(0.9));
  for (int step = 0; step < 4; ++step) {
    torch::manual_seed(step);
    const Tensor x = here(torch::randn({9, 13}));
    Tensor expected = plain->forward(x);
    Tensor actual = wrapped->forward(x);
    EXPECT_LE(difference(actual, expected), exact(1e-3));
    expected.backward();
    actual.backward();
    for (const auto& parameter : sharded.parameters()) {
      if (parameter.leaf.grad().defined()) {
        EXPECT_EQ(parameter.leaf.grad().scalar_type(), parameter.leaf.scalar_type()) << parameter.fqn;
      }
    }
    expect_same_gradients(sharded, *plain, exact(1e-2), "mixed");
    plain_optimizer.step();
    optimizer.step();
    plain_optimizer.zero_grad();
    optimizer.zero_grad();
  }
  Gathered full = sharded.gather();
  EXPECT_TRUE(torch::equal(full["codes"], plain->codes));
  EXPECT_TRUE(torch::equal(full["mask"], plain->mask));
}

// 256 + 1 is 256 in bf16: the sum over ranks must not be made in it.
TEST(Dtypes, HalfGradientsAreSummedInFp32) {
  struct OneImpl : torch::nn::Module {
    Tensor w = register_parameter("w", torch::ones({64}, torch::kBFloat16));
  };
  auto model = std::make_shared<OneImpl>();
  model->to(device());
  Sharded sharded = fully_shard(*model, runtime().mesh());
  // rank 0 contributes 256, the others 1 each
  (model->w * (rank() == 0 ? 256.0 : 1.0)).sum().backward();
  const Tensor expected = torch::tensor((256.0 + (world_size() - 1)) / world_size()).to(torch::kBFloat16);
  const Tensor& leaf = sharded.parameters()[0].leaf;
  if (leaf.numel() > 0) {
    EXPECT_TRUE(torch::equal(leaf.grad(), torch::full_like(leaf.grad(), expected.item<float>())));
  }
}

// Fused and foreach operators take leaves in lists; the next forward must see what they wrote.
TEST(Dtypes, FusedAndForeachWritesAreSeen) {
  torch::manual_seed(1);
  torch::nn::Linear plain(12, 9);
  torch::manual_seed(1);
  torch::nn::Linear wrapped(12, 9);
  plain->to(device());
  wrapped->to(device());
  Sharded sharded = fully_shard(*wrapped, runtime().mesh(), FsdpOptions().debug_overwrite_freed(true));
  struct Adam {
    std::vector<Tensor> params, exp_avg, exp_avg_sq, steps;
    explicit Adam(std::vector<Tensor> list) : params(std::move(list)) {
      for (const Tensor& p : params) {
        exp_avg.push_back(torch::zeros_like(p));
        exp_avg_sq.push_back(torch::zeros_like(p));
        steps.push_back(here(torch::zeros({})));
      }
    }
    void step() {
      torch::NoGradGuard no_grad;
      std::vector<Tensor> grads;
      for (const Tensor& p : params) grads.push_back(p.grad());
      at::_foreach_add_(steps, 1);
      at::_fused_adamw_(params, grads, exp_avg, exp_avg_sq, {}, steps, 1e-2, 0.9, 0.999, 0.1, 1e-8, false, false);
      at::_foreach_mul_(params, 0.999);
      for (Tensor& p : params) p.mutable_grad() = Tensor();
    }
  };
  Adam expected(plain->parameters());
  Adam actual(wrapped->parameters());
  for (int step = 0; step < 6; ++step) {
    const Tensor x = here(torch::ones({3, 12})) * (step + 1);
    Tensor one = plain->forward(x).pow(2).mean();
    Tensor two = wrapped->forward(x).pow(2).mean();
    EXPECT_LE(difference(two, one), 1e-5) << "step " << step;
    one.backward();
    two.backward();
    expected.step();
    actual.step();
  }
  expect_same_values(sharded, *plain, 1e-4, "fused");
}

// 0-dim, one giant row, fewer rows than ranks, empty.
TEST(Dtypes, ShapesThatShardBadly) {
  struct ShapesImpl : torch::nn::Module {
    Tensor scalar = register_parameter("scalar", torch::tensor(2.0));
    Tensor row = register_parameter("row", torch::linspace(-1, 1, 777).view({1, 777}));
    Tensor few = register_parameter("few", torch::linspace(-1, 1, 10).view({2, 5}));
    Tensor none = register_parameter("none", torch::zeros({0, 4}));
    Tensor deep = register_parameter("deep", torch::linspace(-1, 1, 5 * 3 * 2 * 7).view({5, 3, 2, 7}));
    Tensor forward() { return scalar * row.pow(2).sum() + few.exp().sum() + none.sum() + deep.sin().sum(); }
  };
  auto plain = std::make_shared<ShapesImpl>();
  auto wrapped = std::make_shared<ShapesImpl>();
  plain->to(device());
  wrapped->to(device());
  Sharded sharded = fully_shard(*wrapped, runtime().mesh(), FsdpOptions().debug_overwrite_freed(true));
  torch::optim::Adagrad plain_optimizer(plain->parameters(), torch::optim::AdagradOptions(1e-2));
  torch::optim::Adagrad optimizer(wrapped->parameters(), torch::optim::AdagradOptions(1e-2));
  for (int step = 0; step < 5; ++step) {
    Tensor expected = plain->forward();
    Tensor actual = wrapped->forward();
    EXPECT_LE(difference(actual, expected), 1e-6);
    expected.backward();
    actual.backward();
    expect_same_gradients(sharded, *plain, 1e-6, "shapes");
    plain_optimizer.step();
    optimizer.step();
    plain_optimizer.zero_grad();
    optimizer.zero_grad();
  }
  expect_same_values(sharded, *plain, 1e-5, "shapes");
}

// One parameter object under two names is one parameter with one owner.
TEST(Dtypes, TiedWeights) {
  struct TiedImpl : torch::nn::Module {
    torch::nn::Embedding table{nullptr};
    torch::nn::Linear body{nullptr};
    Tensor head;
    TiedImpl() {
      table = register_module("table", torch::nn::Embedding(11, 6));
      body = register_module("body", torch::nn::Linear(6, 6));
      head = register_parameter("head", table->weight);
    }
    Tensor forward(Tensor ids) { return at::linear(torch::tanh(body->forward(table->forward(ids))), head).pow(2).mean(); }
  };
  torch::manual_seed(1);
  auto plain = std::make_shared<TiedImpl>();
  torch::manual_seed(1);
  auto wrapped = std::make_shared<TiedImpl>();
  plain->to(device());
  wrapped->to(device());
  Sharded sharded = fully_shard(*wrapped, runtime().mesh(), FsdpOptions().unit(*wrapped->table).unit(*wrapped->body));
  ASSERT_EQ(sharded.parameters().size(), 3U);
  EXPECT_EQ(sharded.parameters()[0].fqn, "head");
  EXPECT_EQ(sharded.parameters()[0].aliases, std::vector<std::string>{"table.weight"});
  EXPECT_EQ(sharded.parameters()[0].unit, 0) << "used by root and table: belongs to their common ancestor";
  plain->forward(here(torch::arange(11))).backward();
  wrapped->forward(here(torch::arange(11))).backward();
  expect_same_gradients(sharded, *plain, exact(1e-6), "tied");
}

}  // namespace
}  // namespace tessera::test
