// Ranks that are slow, ranks that do something alone, ranks that run different programs.
#include <torch/torch.h>

#include <chrono>
#include <thread>

#include "support/multirank.h"
#include "tessera/error.h"

namespace tessera::test {
namespace {

using torch::Tensor;

struct NetImpl : torch::nn::Module {
  torch::nn::Linear a{nullptr}, b{nullptr}, c{nullptr};
  NetImpl() {
    a = register_module("a", torch::nn::Linear(24, 40));
    b = register_module("b", torch::nn::Linear(40, 40));
    c = register_module("c", torch::nn::Linear(40, 24));
  }
  Tensor forward(Tensor x) { return c->forward(torch::tanh(b->forward(torch::tanh(a->forward(x))))); }
};
TORCH_MODULE(Net);

Net make() {
  torch::manual_seed(1);
  Net net;
  net->to(device());
  return net;
}
FsdpOptions options() {
  return FsdpOptions().unit_if([](const std::string& fqn, torch::nn::Module&) { return !fqn.empty(); });
}
Tensor input(int step) {
  torch::manual_seed(100 + step);
  return here(torch::randn({6, 24}));
}
bool is_shm() { return runtime().backend_name() == "shm"; }

// Injects lateness, so that a missing wait becomes a wrong number: each rank in turn.
void be_late(int step) {
  if (step % world_size() == rank()) std::this_thread::sleep_for(std::chrono::milliseconds(3));
}

double tolerance() { return world_size() <= 2 && has_equal_bits() ? 0 : 1e-5; }

class Order : public testing::Test {
 protected:
  Order()
      : plain_(make()), wrapped_(make()), sharded_(fully_shard(*wrapped_, runtime().mesh(), options())),
        plain_optimizer_(plain_->parameters(), torch::optim::AdamWOptions(1e-2)),
        optimizer_(wrapped_->parameters(), torch::optim::AdamWOptions(1e-2)) {}

  void backward(int step) {
    Tensor expected = plain_->forward(input(step)).pow(2).mean();
    Tensor actual = wrapped_->forward(input(step)).pow(2).mean();
    EXPECT_LE(difference(actual, expected), tolerance()) << "step " << step;
    expected.backward();
    actual.backward();
  }
  void step() {
    plain_optimizer_.step();
    optimizer_.step();
  }
  void zero_grad() {
    plain_optimizer_.zero_grad();
    optimizer_.zero_grad();
  }
  void evaluate(int step) {
    torch::NoGradGuard no_grad;
    EXPECT_LE(difference(wrapped_->forward(input(step)), plain_->forward(input(step))), tolerance()) << "evaluation at " << step;
  }

  Net plain_, wrapped_;
  Sharded sharded_;
  torch::optim::AdamW plain_optimizer_, optimizer_;
};

TEST_F(Order, LateRanksSeeNoHalfUpdatedParameter) {
  for (int i = 0; i < 24; ++i) {
    be_late(i);
    backward(i);
    be_late(i + 1);
    if (i % 2 == 0) evaluate(i);  // between backward and step
    be_late(i + 2);
    step();
    if (i % 5 == 0) step();  // two steps in a row
    be_late(i);
    evaluate(i + 1);
    zero_grad();
  }
  expect_same_values(sharded_, *plain_, tolerance(), "late ranks");
}

TEST_F(Order, ClampAndMovingAverageSwap) {
  std::vector<Tensor> average;
  std::vector<Tensor> plain_average;
  torch::NoGradGuard no_grad;
  for (const auto& p : wrapped_->parameters()) average.push_back(p.clone());
  for (const auto& p : plain_->parameters()) plain_average.push_back(p.clone());
  const auto swap = [](const std::vector<Tensor>& live, std::vector<Tensor>& kept) {
    for (size_t i = 0; i < live.size(); ++i) {
      const Tensor before = live[i].clone();
      live[i].data().copy_(kept[i]);  // past autograd, as such code does
      kept[i] = before;
    }
  };
  for (int i = 0; i < 12; ++i) {
    {
      torch::AutoGradMode enable(true);
      backward(i);
    }
    step();
    be_late(i);
    for (auto& p : wrapped_->parameters()) p.clamp_(-0.2, 0.2);
    for (auto& p : plain_->parameters()) p.clamp_(-0.2, 0.2);
    swap(wrapped_->parameters(), average);
    swap(plain_->parameters(), plain_average);
    be_late(i + 1);
    evaluate(i);
    swap(wrapped_->parameters(), average);
    swap(plain_->parameters(), plain_average);
    evaluate(i);
    zero_grad();
  }
}

// A step between two backwards of two graphs: the second graph saw old weights and must be refused.
TEST_F(Order, StepBetweenTwoBackwards) {
  Tensor first = wrapped_->forward(input(0)).pow(2).mean();
  Tensor second = wrapped_->forward(input(1)).pow(2).mean();
  first.backward();
  optimizer_.step();
  EXPECT_THROW(second.backward(), c10::Error);
  zero_grad();
  Tensor third = wrapped_->forward(input(2)).pow(2).mean();
  third.backward();  // the engine has recovered on every rank
  for (const auto& parameter : sharded_.parameters()) EXPECT_TRUE(parameter.leaf.grad().defined()) << parameter.fqn;
}

TEST_F(Order, EvaluationOnRank0Only) {
  if (!is_shm() && world_size() > 1) {  // a touch is a collective: an error that names both, on every rank
    const auto run = [&] {
      if (rank() == 0) {
        torch::NoGradGuard no_grad;
        wrapped_->forward(input(0));
      } else {
        sharded_.gather();
      }
    };
    try {
      run();
      FAIL() << "ranks ran different programs unnoticed";
    } catch (const CommError& error) {
      EXPECT_NE(std::string(error.what()).find("ranks run different programs"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("unit a"), std::string::npos) << error.what();
    }
    return;
  }
  for (int i = 0; i < 8; ++i) {
    backward(i);
    if (rank() == 0) evaluate(i);
    step();
    zero_grad();
    if (rank() == 0) evaluate(i);
  }
}

TEST_F(Order, DifferentOrderOfUnitsIsAnError) {
  if (is_shm() || world_size() == 1) return;  // no collective to disagree on
  torch::NoGradGuard no_grad;
  const bool other = rank() == world_size() - 1;
  try {
    (other ? wrapped_->c->forward(here(torch::ones({1, 40}))) : wrapped_->b->forward(here(torch::ones({1, 40}))));
    FAIL();
  } catch (const CommError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("unit b"), std::string::npos) << text;
    EXPECT_NE(text.find("unit c"), std::string::npos) << text;
    EXPECT_NE(text.find("rank " + std::to_string(world_size() - 1)), std::string::npos) << text;
  }
}

// BL-64, weights: uneven samples, one rank with none.
TEST_F(Order, RankWithoutSamplesWeighsNothing) {
  const Tensor batch = input(7);
  const bool idle = world_size() > 1 && rank() == world_size() - 1;
  const int64_t workers = std::max(1, world_size() - 1);
  const int64_t begin = idle ? 0 : rank() * 6 / workers;
  const int64_t end = idle ? 1 : (rank() + 1) * 6 / workers;
  sharded_.set_gradient_weight(idle ? 0.0 : static_cast<double>(end - begin));
  plain_->forward(batch).pow(2).mean().backward();
  wrapped_->forward(batch.narrow(0, begin, end - begin)).pow(2).mean().backward();
  expect_same_gradients(sharded_, *plain_, 1e-5, "weighted");
  sharded_.set_gradient_weight(0.0);
  if (world_size() > 1) {
    EXPECT_THROW(wrapped_->forward(batch).pow(2).mean().backward(), UsageError) << "all weights are 0";
  }
}

// Nothing of a steady-state step grows: the same storage holds the gradients of every step.
TEST_F(Order, GradientStorageIsReused) {
  std::vector<const void*> seen;
  for (int i = 0; i < 6; ++i) {
    backward(i);
    const void* data = sharded_.parameters()[0].leaf.grad().storage().data();
    if (i >= 2) seen.push_back(data);
    step();
    zero_grad();
  }
  for (const void* data : seen) EXPECT_EQ(data, seen[0]);
}

TEST_F(Order, KeptGradientsAreNotOverwritten) {
  backward(0);
  const Tensor kept = sharded_.parameters()[0].leaf.grad();
  const Tensor copy = kept.clone();
  zero_grad();
  backward(1);
  EXPECT_TRUE(torch::equal(kept, copy));
}

}  // namespace
}  // namespace tessera::test
