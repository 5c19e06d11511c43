// Programs that are hard for gather-on-touch, each against an unwrapped twin, with freed memory
// overwritten. Every rank feeds the same batch, so the average over ranks is the twin's gradient.
#include <torch/torch.h>

#include <functional>

#include "support/multirank.h"
#include "tessera/error.h"

namespace tessera::test {
namespace {

using torch::Tensor;

// Recomputes its function in backward (activation checkpointing).
struct Recompute : torch::autograd::Function<Recompute> {
  using Body = std::function<Tensor(Tensor)>;
  static Tensor forward(torch::autograd::AutogradContext* context, Tensor x, int64_t body) {
    context->save_for_backward({x});
    context->saved_data["body"] = body;
    torch::NoGradGuard no_grad;
    return (*reinterpret_cast<Body*>(body))(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context, torch::autograd::variable_list grads) {
    Tensor x = context->get_saved_variables()[0].detach();
    x.requires_grad_(true);
    Tensor y;
    {
      torch::AutoGradMode enable(true);
      y = (*reinterpret_cast<Body*>(context->saved_data["body"].toInt()))(x);
    }
    torch::autograd::backward({y}, {grads[0]});
    return {x.grad(), Tensor()};
  }
};

struct NetImpl : torch::nn::Module {
  torch::nn::Linear a{nullptr}, b{nullptr}, c{nullptr}, unused{nullptr};
  torch::nn::LSTM lstm{nullptr};
  torch::nn::Conv1d conv{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Embedding table{nullptr};
  Recompute::Body body;

  NetImpl() {
    a = register_module("a", torch::nn::Linear(16, 16));
    b = register_module("b", torch::nn::Linear(16, 16));
    c = register_module("c", torch::nn::Linear(16, 16));
    unused = register_module("unused", torch::nn::Linear(4, 4));
    lstm = register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(16, 16).batch_first(true)));
    conv = register_module("conv", torch::nn::Conv1d(1, 4, 3));
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
    table = register_module("table", torch::nn::Embedding(50, 16));
    to(device());
    body = [this](Tensor x) { return torch::tanh(b->forward(torch::relu(a->forward(x)))); };
  }

  Tensor forward(Tensor ids, bool recompute) {
    Tensor x = table->forward(ids);
    x = recompute ? Recompute::apply(x, reinterpret_cast<int64_t>(&body)) : body(x);
    x = x + body(x);  // a module used twice
    const Tensor weight = torch::cat({a->weight, c->weight, b->weight}, 0);  // three units in one operator
    x = at::linear(x, weight).slice(-1, 0, 16) + std::get<0>(lstm->forward(x.unsqueeze(1))).squeeze(1);
    x = at::linear(x, c->weight, b->bias);  // weight and bias in two units
    const Tensor y = norm->forward(conv->forward(x.unsqueeze(1)));
    const auto norms = at::_foreach_norm({a->weight, b->weight, c->bias});
    return y.mean() + x.pow(2).mean() + 0.01 * (norms[0] + norms[1] + norms[2]);
  }
};
TORCH_MODULE(Net);

class Programs : public testing::Test {
 protected:
  Programs() : plain_(make()), wrapped_(make()), sharded_(fully_shard(*wrapped_, runtime().mesh(), options())) {}

  static Net make() {
    torch::manual_seed(1);
    return Net();
  }
  static FsdpOptions options() {
    return FsdpOptions().debug_overwrite_freed(true).unit_if([](const std::string& fqn, torch::nn::Module&) {
      return fqn == "a" || fqn == "b" || fqn == "c" || fqn == "lstm" || fqn == "table";
    });
  }
  // One rank averages one value: equal bits. Several ranks round the mean.
  static double tolerance() { return !has_equal_bits() ? 1e-4 : world_size() <= 2 ? 0 : 1e-6; }
  void expect_same(const std::string& what) {
    expect_same_gradients(sharded_, *plain_, tolerance(), what);
    plain_->zero_grad();
    wrapped_->zero_grad();
  }
  void expect_same_output() {
    EXPECT_LE(difference(wrapped_->forward(ids(), false), plain_->forward(ids(), false)), has_equal_bits() ? 0 : 1e-4);
  }
  Tensor ids() const {
    torch::manual_seed(9);
    return here(torch::randint(50, {8}));
  }

  Net plain_, wrapped_;
  Sharded sharded_;
};

TEST_F(Programs, ForwardAndBackward) {
  Tensor expected = plain_->forward(ids(), false);
  Tensor actual = wrapped_->forward(ids(), false);
  EXPECT_NEAR(actual.item<float>(), expected.item<float>(), has_equal_bits() ? 0 : 1e-4);
  expected.backward();
  actual.backward();
  expect_same("plain");
}

TEST_F(Programs, RecomputeInBackward) {
  for (int round = 0; round < 3; ++round) {
    plain_->forward(ids(), true).backward();
    wrapped_->forward(ids(), true).backward();
    expect_same("recompute");
  }
}

TEST_F(Programs, NoGradAndInferenceMode) {
  plain_->eval();
  wrapped_->eval();
  {
    torch::NoGradGuard no_grad;
    expect_same_output();
  }
  {
    c10::InferenceMode inference;
    expect_same_output();
  }
  plain_->train();
  wrapped_->train();
  plain_->forward(ids(), false).backward();
  wrapped_->forward(ids(), false).backward();
  expect_same("after inference");
}

TEST_F(Programs, TwoForwardsOneBackward) {
  const auto loss = [&](Net& net) { return net->forward(ids(), false) + net->forward(torch::flip(ids(), {0}), false); };
  loss(plain_).backward();
  loss(wrapped_).backward();
  expect_same("two forwards");
}

TEST_F(Programs, DoubleBackward) {
  at::globalContext().setUserEnabledCuDNN(false);  // cuDNN's LSTM has no double backward
  const auto run = [&](Net& net) {
    const auto grad = torch::autograd::grad({net->forward(ids(), false)}, {net->a->weight}, {}, true, true)[0];
    grad.pow(2).sum().backward();
  };
  run(plain_);
  run(wrapped_);
  expect_same("double backward");
  at::globalContext().setUserEnabledCuDNN(true);
}

TEST_F(Programs, BackwardWithCreateGraph) {
  plain_->forward(ids(), false).backward({}, /*retain_graph=*/true, /*create_graph=*/true);
  wrapped_->forward(ids(), false).backward({}, /*retain_graph=*/true, /*create_graph=*/true);
  for (auto& parameter : plain_->parameters()) {
    if (parameter.grad().defined()) parameter.mutable_grad() = parameter.grad().detach();
  }
  expect_same("create_graph");
}

TEST_F(Programs, ForwardLeftByAnException) {
  EXPECT_THROW(
      {
        Tensor x = wrapped_->a->forward(wrapped_->table->forward(ids()));
        throw std::runtime_error("user code");
      },
      std::runtime_error);
  plain_->forward(ids(), false).backward();
  wrapped_->forward(ids(), false).backward();
  expect_same("after an exception");
}

TEST_F(Programs, BackwardLeftByAnException) {
  Tensor loss = wrapped_->forward(ids(), false);
  Tensor x = wrapped_->table->forward(ids());
  x.register_hook([](const Tensor&) -> Tensor { throw std::runtime_error("user hook"); });
  EXPECT_THROW(wrapped_->a->forward(x).sum().backward(), std::runtime_error);
  wrapped_->zero_grad();
  plain_->forward(ids(), false).backward();
  wrapped_->forward(ids(), false).backward();
  expect_same("after a failed backward");
}

TEST_F(Programs, BackwardOfAPartOfTheGraph) {
  plain_->a->forward(plain_->table->forward(ids())).sum().backward();
  wrapped_->a->forward(wrapped_->table->forward(ids())).sum().backward();
  expect_same("part");
}

TEST_F(Programs, BackwardThatTouchesNoParameter) {
  plain_->table->forward(ids()).pow(2).sum().backward();
  wrapped_->table->forward(ids()).pow(2).sum().backward();
  expect_same("embedding only");
}

TEST_F(Programs, GradTowardsAWeightLeavesNoGradient) {
  const Tensor loss = wrapped_->forward(ids(), false);
  torch::autograd::grad({loss}, {wrapped_->a->weight}, {}, true);
  for (const auto& parameter : sharded_.parameters()) EXPECT_FALSE(parameter.leaf.grad().defined()) << parameter.fqn;
  loss.backward();
  plain_->forward(ids(), false).backward();
  expect_same("after grad");
}

TEST_F(Programs, GradientsAccumulateOverBackwards) {
  for (int micro = 0; micro < 3; ++micro) {
    plain_->forward(torch::roll(ids(), micro), micro == 1).backward();
    wrapped_->forward(torch::roll(ids(), micro), micro == 1).backward();
  }
  expect_same_gradients(sharded_, *plain_, std::max(tolerance(), world_size() == 1 ? 0 : 1e-6), "accumulated");
}

TEST_F(Programs, OldGraphIsRefusedAfterAWrite) {
  Tensor loss = wrapped_->forward(ids(), false);
  {
    torch::NoGradGuard no_grad;
    wrapped_->named_parameters()["b.weight"].add_(1);
  }
  try {
    loss.backward();
    FAIL() << "an old graph used new weights";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("modified by an inplace"), std::string::npos) << error.what();
  }
}

TEST_F(Programs, WriteToAGatheredParameterIsRefused) {
  torch::NoGradGuard no_grad;
  try {
    wrapped_->b->weight.mul_(2);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("b.weight"), std::string::npos) << error.what();
  }
}

TEST_F(Programs, GatherReadsAndWritesWholeParameters) {
  torch::NoGradGuard no_grad;
  {
    Gathered full = sharded_.gather();
    EXPECT_TRUE(torch::equal(full["lstm.weight_hh_l0"], plain_->lstm->named_parameters()["weight_hh_l0"]));
    full["a.weight"].fill_(0.25);
    full["c.bias"].add_(1);
    full.write_back();
  }
  plain_->a->weight.fill_(0.25);
  plain_->c->bias.add_(1);
  { Gathered unchanged = sharded_.gather(*wrapped_->b); unchanged["b.weight"].fill_(7); }  // not written back
  expect_same_output();
  expect_same_values(sharded_, *plain_, 0, "written back");
}

TEST_F(Programs, ReplacedLeafIsRefused) {
  wrapped_->to(torch::kDouble);
  EXPECT_THROW(wrapped_->forward(ids(), false), UsageError);
}

}  // namespace
}  // namespace tessera::test
