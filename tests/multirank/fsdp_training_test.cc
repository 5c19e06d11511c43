// Stock optimizers on sharded leaves against the unwrapped twin, in the order of things that users
// do: steps, evaluation between backward and step, clamps, two forwards before two backwards.
#include <torch/torch.h>

#include <functional>

#include "support/multirank.h"
#include "tessera/error.h"

namespace tessera::test {
namespace {

using torch::Tensor;
using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<Tensor>)>;

struct ModelImpl : torch::nn::Module {
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear a{nullptr}, b{nullptr}, frozen{nullptr}, unused{nullptr}, tied{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  Tensor scale, codes;

  explicit ModelImpl(torch::Dtype dtype = torch::kFloat) {
    table = register_module("table", torch::nn::Embedding(53, 12));
    a = register_module("a", torch::nn::Linear(12, 17));
    norm = register_module("norm", torch::nn::BatchNorm1d(17));
    b = register_module("b", torch::nn::Linear(17, 12));
    frozen = register_module("frozen", torch::nn::Linear(12, 12));
    unused = register_module("unused", torch::nn::Linear(3, 1));
    scale = register_parameter("scale", torch::tensor(1.5));
    codes = register_parameter("codes", torch::arange(21, torch::kInt64).view({7, 3}), /*requires_grad=*/false);
    for (auto& parameter : frozen->parameters()) parameter.set_requires_grad(false);
    to(device(), dtype);
  }
  Tensor forward(Tensor ids) {
    Tensor x = table->forward(ids);
    x = norm->forward(torch::tanh(a->forward(x)));
    x = frozen->forward(b->forward(x)) * scale;
    x = x + codes.sum() * 1e-3;
    return at::linear(x, table->weight).log_softmax(-1).pow(2).mean();  // tied use of the table
  }
};
TORCH_MODULE(Model);

struct Case {
  const char* name;
  MakeOptimizer make;
};

template <typename Optimizer, typename Options>
MakeOptimizer make_with(Options options) {
  return [options](std::vector<Tensor> parameters) {
    return std::make_unique<Optimizer>(std::move(parameters), options);
  };
}

std::vector<Case> cases() {
  using namespace torch::optim;
  return {
      {"SGD", make_with<SGD>(SGDOptions(2e-3).momentum(0.9).weight_decay(0.01))},
      {"Adam", make_with<Adam>(AdamOptions(1e-2).weight_decay(0.1).amsgrad(true))},
      {"AdamW", make_with<AdamW>(AdamWOptions(1e-2))},
      {"Adagrad", make_with<Adagrad>(AdagradOptions(1e-2).initial_accumulator_value(0.5))},
      {"RMSprop", make_with<RMSprop>(RMSpropOptions(1e-3).centered(true).momentum(0.5))},
  };
}

FsdpOptions options() {
  return FsdpOptions().debug_overwrite_freed(true).unit_if(
      [](const std::string& fqn, torch::nn::Module&) { return fqn == "a" || fqn == "b" || fqn == "frozen"; });
}

// Rank r's part of a batch that no number of ranks divides.
Tensor my_part(const Tensor& batch) {
  const int64_t base = batch.size(0) / world_size();
  const int64_t extra = batch.size(0) % world_size();
  const int64_t begin = rank() * base + std::min<int64_t>(rank(), extra);
  return batch.narrow(0, begin, base + (rank() < extra ? 1 : 0));
}

class Training : public testing::TestWithParam<Case> {};

// BL-86: the matrix {shard, no shard} x optimizer x world size, uneven sizes, compared in float64.
TEST_P(Training, SameAsOneProcess) {
  torch::manual_seed(1);
  Model plain(torch::kDouble);
  torch::manual_seed(1);
  Model wrapped(torch::kDouble);
  plain->norm->eval();  // batch statistics differ between a batch and its parts
  wrapped->norm->eval();
  Sharded sharded = fully_shard(*wrapped, runtime().mesh(), options());
  auto plain_optimizer = GetParam().make(plain->parameters());
  auto optimizer = GetParam().make(wrapped->parameters());
  torch::manual_seed(3);
  for (int step = 0; step < 20; ++step) {
    const Tensor batch = here(torch::randint(53, {11}));
    const Tensor mine = my_part(batch);
    sharded.set_gradient_weight(static_cast<double>(mine.size(0)));
    Tensor expected = plain->forward(batch);
    Tensor actual = wrapped->forward(mine);
    const double loss = runtime().sum(actual.item<double>() * static_cast<double>(mine.size(0))) / 11;
    EXPECT_NEAR(loss, expected.item<double>(), 1e-9 * std::abs(loss)) << "step " << step;
    expected.backward();
    actual.backward();
    if (step % 3 == 1) {  // evaluation between backward and step
      torch::NoGradGuard no_grad;
      EXPECT_NEAR(wrapped->forward(batch).item<double>(), plain->forward(batch).item<double>(), 1e-9);
    }
    if (step == 5) expect_same_gradients(sharded, *plain, 1e-8, "gradients");
    plain_optimizer->step();
    optimizer->step();
    if (step % 5 == 4) {  // a clamp right after the step
      torch::NoGradGuard no_grad;
      for (auto& p : plain->parameters()) if (p.is_floating_point()) p.clamp_(-0.8, 0.8);
      for (auto& p : wrapped->parameters()) if (p.is_floating_point()) p.clamp_(-0.8, 0.8);
    }
    plain_optimizer->zero_grad();
    optimizer->zero_grad();
  }
  expect_same_values(sharded, *plain, 1e-8, GetParam().name);
  expect_same_state(sharded, *optimizer, *plain, *plain_optimizer, 1e-8);
}

// One rank: every bit, in fp32. Several ranks on the same batch: the same within rounding.
TEST_P(Training, BitEqualOnTheSameBatch) {
  torch::manual_seed(1);
  Model plain;
  torch::manual_seed(1);
  Model wrapped;
  Sharded sharded = fully_shard(*wrapped, runtime().mesh(), options());
  auto plain_optimizer = GetParam().make(plain->parameters());
  auto optimizer = GetParam().make(wrapped->parameters());
  torch::manual_seed(3);
  for (int step = 0; step < 12; ++step) {
    const Tensor first = here(torch::randint(53, {8}));
    const Tensor second = here(torch::randint(53, {8}));
    const auto run = [&](Model& model) {
      if (step % 4 == 3) {
        Tensor one = model->forward(first), two = model->forward(second);
        one.backward();
        two.backward();
        return one.item<float>() + two.item<float>();
      }
      if (step % 4 == 2) {
        Tensor loss = model->table->forward(first).pow(2).mean();
        loss.backward();
        return loss.item<float>();
      }
      Tensor loss = model->forward(first);
      loss.backward();
      return loss.item<float>();
    };
    const float expected = run(plain);
    const float actual = run(wrapped);
    if (world_size() <= 2 && has_equal_bits()) {
      EXPECT_EQ(actual, expected) << "step " << step;
    } else {
      EXPECT_NEAR(actual, expected, 1e-4 * std::abs(expected)) << "step " << step;
    }
    plain_optimizer->step();
    optimizer->step();
    plain_optimizer->zero_grad();
    optimizer->zero_grad();
  }
  if (world_size() <= 2 && has_equal_bits()) expect_same_values(sharded, *plain, 0, GetParam().name);
}

INSTANTIATE_TEST_SUITE_P(Optimizers, Training, testing::ValuesIn(cases()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(Wrapping, OptimizerBuiltBeforeIsRefused) {  // torch case A4, BL-34
  torch::manual_seed(1);
  Model model;
  torch::optim::SGD early(model->parameters(), 0.1);
  Sharded sharded = fully_shard(*model, runtime().mesh(), options());
  for (int round = 0; round < 2; ++round) {
    early.zero_grad();
    model->forward(here(torch::arange(8))).backward();
    try {
      early.step();
      FAIL() << "an optimizer that trains nothing stepped silently";
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()).find("Build it after fully_shard()"), std::string::npos) << error.what();
    }
  }
}

TEST(Wrapping, UnusedAndFrozenParametersGetNoGradient) {
  torch::manual_seed(1);
  Model model;
  Sharded sharded = fully_shard(*model, runtime().mesh(), options());
  model->forward(here(torch::arange(8))).backward();
  for (const auto& parameter : sharded.parameters()) {
    const bool expected = parameter.fqn.rfind("unused.", 0) != 0 && parameter.fqn.rfind("frozen.", 0) != 0 && parameter.fqn != "codes";
    EXPECT_EQ(parameter.leaf.grad().defined(), expected) << parameter.fqn;
  }
}

// A parameter that only one rank uses gets its gradient on all ranks.
TEST(Wrapping, ParameterUsedOnOneRankOnly) {
  torch::manual_seed(1);
  Model model;
  Sharded sharded = fully_shard(*model, runtime().mesh(), options());
  for (int round = 0; round < 3; ++round) {
    Tensor loss = model->forward(here(torch::arange(8)));
    if (rank() == world_size() - 1) loss = loss + model->unused->forward(here(torch::ones({2, 3}))).sum();
    loss.backward();
    for (const auto& parameter : sharded.parameters()) {
      if (parameter.fqn != "unused.weight") continue;
      ASSERT_TRUE(parameter.leaf.grad().defined());
      if (parameter.leaf.numel() > 0) {
        EXPECT_NEAR(parameter.leaf.grad()[0][0].item<float>(), 2.0 / world_size(), 1e-6);
      }
    }
    model->zero_grad();
  }
}

// BL-84: flags that change between steps take effect, from either side.
TEST(Wrapping, RequiresGradChangesTakeEffect) {
  torch::manual_seed(1);
  Model model;
  Sharded sharded = fully_shard(*model, runtime().mesh(), options());
  const auto grad_of = [&](const std::string& fqn) { return model->named_parameters()[fqn].grad().defined(); };
  model->forward(here(torch::arange(8))).backward();
  EXPECT_FALSE(grad_of("frozen.weight"));
  { torch::NoGradGuard no_grad; model->forward(here(torch::arange(8))); }
  model->named_parameters()["frozen.weight"].set_requires_grad(true);
  model->b->weight.set_requires_grad(false);
  model->zero_grad();
  model->forward(here(torch::arange(8))).backward();
  EXPECT_TRUE(grad_of("frozen.weight"));
  EXPECT_FALSE(grad_of("b.weight"));
  EXPECT_FALSE(model->named_parameters()["b.weight"].requires_grad());
}

// BL-64, BL-18: the norm of the whole, the same on each rank, also with empty shards.
TEST(Wrapping, ClipGradNormIsGlobal) {
  for (const double norm_type : {1.0, 2.0, 3.0, std::numeric_limits<double>::infinity()}) {
    torch::manual_seed(1);
    Model plain(torch::kDouble);
    torch::manual_seed(1);
    Model wrapped(torch::kDouble);
    Sharded sharded = fully_shard(*wrapped, runtime().mesh(), options());
    plain->forward(here(torch::arange(9))).backward();
    wrapped->forward(here(torch::arange(9))).backward();
    const double expected = torch::nn::utils::clip_grad_norm_(plain->parameters(), 1e-3, norm_type);
    const double actual = sharded.clip_grad_norm(1e-3, norm_type);
    EXPECT_NEAR(actual, expected, 1e-10 * expected) << "p = " << norm_type;
    expect_same_gradients(sharded, *plain, 1e-9, "clipped");
  }
}

TEST(Wrapping, GroupsAndAddedGroups) {
  torch::manual_seed(1);
  Model plain(torch::kDouble);
  torch::manual_seed(1);
  Model wrapped(torch::kDouble);
  Sharded sharded = fully_shard(*wrapped, runtime().mesh(), options());
  const auto make = [](Model& model) {
    auto named = model->named_parameters();
    auto optimizer = std::make_unique<torch::optim::AdamW>(std::vector<Tensor>{named["a.weight"], named["a.bias"]},
                                                           torch::optim::AdamWOptions(1e-2));
    torch::optim::OptimizerParamGroup group({named["b.weight"], named["scale"]});
    group.set_options(std::make_unique<torch::optim::AdamWOptions>(torch::optim::AdamWOptions(3e-3).weight_decay(0.2)));
    optimizer->add_param_group(group);
    return optimizer;
  };
  auto expected = make(plain);
  auto actual = make(wrapped);
  for (int step = 0; step < 5; ++step) {
    plain->forward(here(torch::arange(9))).backward();
    wrapped->forward(here(torch::arange(9))).backward();
    expected->step();
    actual->step();
    plain->zero_grad();
    wrapped->zero_grad();
  }
  expect_same_values(sharded, *plain, 1e-9, "two groups");
}

TEST(Wrapping, DifferentSeedsAreRefused) {
  torch::manual_seed(rank());
  Model model;
  if (world_size() == 1) return (void)fully_shard(*model, runtime().mesh(), options());
  try {
    fully_shard(*model, runtime().mesh(), options());
    FAIL();
  } catch (const LayoutError& error) {
    EXPECT_NE(std::string(error.what()).find("seed all ranks alike"), std::string::npos) << error.what();
  }
}

TEST(Wrapping, ValuesOfRank0) {
  torch::manual_seed(100);
  Model reference;
  torch::manual_seed(100 + rank());
  Model model;
  Sharded sharded = fully_shard(*model, runtime().mesh(), options().initial_values(InitialValues::kFromRank0));
  expect_same_values(sharded, *reference, 0, "rank 0's");
}

TEST(Wrapping, RefusesWhatItCannotShard) {
  Model model;
  Sharded sharded = fully_shard(*model, runtime().mesh(), options().initial_values(InitialValues::kFromRank0));
  EXPECT_THROW(fully_shard(*model, runtime().mesh()), UsageError);
  struct Holder : torch::nn::Module {
    Holder() { register_module("list", torch::nn::ParameterList(here(torch::ones({2})))); }
  } holder;
  EXPECT_THROW(fully_shard(holder, runtime().mesh()), UsageError);
}

// Memory: a rank's leaves are its share, not the whole.
TEST(Wrapping, ShardsAreShards) {
  torch::manual_seed(1);
  Model model;
  Sharded sharded = fully_shard(*model, runtime().mesh(), options());
  int64_t local = 0;
  for (const auto& parameter : sharded.parameters()) local += parameter.leaf.numel();
  EXPECT_EQ(static_cast<int64_t>(runtime().sum(static_cast<double>(local))), sharded.full_numel());
  EXPECT_NE(sharded.summary().find("frozen"), std::string::npos);
}

}  // namespace
}  // namespace tessera::test
