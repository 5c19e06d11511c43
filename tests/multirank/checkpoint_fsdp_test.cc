// Checkpoints of sharded models as users write them: every rank a process, every backend.
#include <gmock/gmock.h>

#include "multirank/checkpoint_run.h"
#include "tessera/checkpoint.h"
#include "tessera/error.h"

namespace tessera::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using torch::Tensor;

void expect_equal(const ShardedRun& actual, const ShardedRun& expected) {
  torch::NoGradGuard no_grad;
  const auto& mine = actual.sharded->parameters();
  const auto& other = expected.sharded->parameters();
  ASSERT_EQ(mine.size(), other.size());
  for (size_t i = 0; i < mine.size(); ++i)
    EXPECT_EQ(difference(mine[i].leaf, other[i].leaf), 0) << mine[i].fqn;
  const auto buffers = actual.sharded->buffers(), other_buffers = expected.sharded->buffers();
  for (size_t i = 0; i < buffers.size(); ++i)
    EXPECT_EQ(difference(buffers[i].tensor, other_buffers[i].tensor), 0) << buffers[i].fqn;
}

struct Case {
  const char* name;
  MakeOptimizer saved, fresh;
};

std::vector<Case> cases() {
  using namespace torch::optim;
  return {
      {"SGD", make_with<SGD>(SGDOptions(0.05).momentum(0.9)), make_with<SGD>(SGDOptions(0.5))},
      {"Adam", make_with<Adam>(AdamOptions(1e-2).weight_decay(0.1).amsgrad(true)),
       make_with<Adam>(AdamOptions(1).amsgrad(true))},
      {"AdamW", make_with<AdamW>(AdamWOptions(1e-2)), make_with<AdamW>(AdamWOptions(1))},
      {"Adagrad", make_with<Adagrad>(AdagradOptions(1e-2).initial_accumulator_value(0.5)),
       make_with<Adagrad>(AdagradOptions(1))},
      {"RMSprop", make_with<RMSprop>(RMSpropOptions(1e-3).centered(true).momentum(0.5)),
       make_with<RMSprop>(RMSpropOptions(1).centered(true))},
  };
}

class CheckpointFsdp : public testing::TestWithParam<std::tuple<size_t, StateDictKind>> {};

TEST_P(CheckpointFsdp, AResumedRunIsBitEqualToTheUninterruptedOne) {
  const auto [index, kind] = GetParam();
  const Case test = cases()[index];
  const CkptSpec spec = CkptSpec().kind(kind);
  SharedDirectory directory;
  ShardedRun whole(test.saved, 1);
  for (int64_t step = 0; step < 3; ++step) whole.step(step);
  Checkpointer checkpointer(directory.path(), spec, runtime(),
                            CheckpointerOptions().save(SaveOptions().sync(false)));
  EXPECT_EQ(checkpointer.save(3, TrainState(*whole.sharded, *whole.optimizer)),
            directory / "step-00000003");

  std::vector<double> losses, resumed_losses;
  {
    // The state of the generator that the load must bring back.
    const Tensor generator = at::globalContext().defaultGenerator(torch::kCPU).get_state();
    for (int64_t step = 3; step < 6; ++step) losses.push_back(whole.step(step));
    ShardedRun resumed(test.fresh, 2);
    resumed.step(0);  // whatever it was doing before
    TrainState state(*resumed.sharded, *resumed.optimizer);
    EXPECT_EQ(checkpointer.load_latest(state), 3);
    EXPECT_TRUE(
        torch::equal(at::globalContext().defaultGenerator(torch::kCPU).get_state(), generator));
    EXPECT_NO_THROW(assert_step_present(*resumed.optimizer, *resumed.sharded));
    for (int64_t step = 3; step < 6; ++step) resumed_losses.push_back(resumed.step(step));
    EXPECT_EQ(resumed_losses, losses);
    expect_equal(resumed, whole);
  }
}

std::string case_name(const testing::TestParamInfo<std::tuple<size_t, StateDictKind>>& info) {
  constexpr const char* kKinds[] = {"Sharded", "Full", "Local"};
  return std::string(cases()[std::get<0>(info.param)].name) +
         kKinds[static_cast<size_t>(std::get<1>(info.param))];
}

INSTANTIATE_TEST_SUITE_P(All, CheckpointFsdp,
                         testing::Combine(testing::Range(size_t{0}, size_t{5}),
                                          testing::Values(StateDictKind::kSharded,
                                                          StateDictKind::kFull,
                                                          StateDictKind::kLocal)),
                         case_name);

// BL-02. The two faults from which this project comes, by name. Both at every world size and on every
// rank, with ranks that hold no row of some parameters.

TEST(AdagradSumSurvives, BeforeAndAfterTheFirstStepAndInLateGroups) {
  using torch::optim::Adagrad;
  using torch::optim::AdagradOptions;
  for (const StateDictKind kind :
       {StateDictKind::kSharded, StateDictKind::kFull, StateDictKind::kLocal}) {
    for (const int64_t steps : {0, 3}) {
      SharedDirectory directory;
      const CkptSpec spec = CkptSpec().kind(kind);
      const MakeOptimizer two_groups = [](std::vector<Tensor> parameters) {
        const std::vector<Tensor> late(parameters.end() - 3, parameters.end());
        parameters.resize(parameters.size() - 3);
        std::vector<torch::optim::OptimizerParamGroup> groups;
        groups.emplace_back(std::move(parameters));
        groups.emplace_back(late, std::make_unique<AdagradOptions>(0.5));
        return std::make_unique<Adagrad>(groups,
                                         AdagradOptions(1e-2).initial_accumulator_value(0.25));
      };
      ShardedRun saved(two_groups, 1);
      for (int64_t step = 0; step < steps; ++step) saved.step(step);
      save_checkpoint(directory / "c", TrainState(*saved.sharded, *saved.optimizer), spec, steps,
                      SaveOptions().sync(false));
      ShardedRun loaded(two_groups, 2);
      TrainState state(*loaded.sharded, *loaded.optimizer);
      load_checkpoint(directory / "c", state, spec);
      const auto& mine = loaded.sharded->parameters();
      for (size_t i = 0; i < mine.size(); ++i) {
        const auto& have = static_cast<const torch::optim::AdagradParamState&>(
            *loaded.optimizer->state().at(mine[i].leaf.unsafeGetTensorImpl()));
        const auto& want =
            static_cast<const torch::optim::AdagradParamState&>(*saved.optimizer->state().at(
                saved.sharded->parameters()[i].leaf.unsafeGetTensorImpl()));
        EXPECT_EQ(have.sum().sizes(), mine[i].leaf.sizes()) << mine[i].fqn;
        EXPECT_TRUE(torch::equal(have.sum(), want.sum())) << mine[i].fqn;
        EXPECT_EQ(have.step(), want.step()) << mine[i].fqn;
      }
      torch::manual_seed(9);  // of the dropout
      const double loss = loaded.step(steps);
      torch::manual_seed(9);
      EXPECT_EQ(loss, saved.step(steps));
    }
  }
}

TEST(StepIsNeverMissing, ExactValueAndTypeForEveryParameterInEveryKind) {
  using torch::optim::Adam;
  using torch::optim::AdamParamState;
  const MakeOptimizer make = make_with<Adam>(torch::optim::AdamOptions(1e-2));
  for (const StateDictKind kind :
       {StateDictKind::kSharded, StateDictKind::kFull, StateDictKind::kLocal}) {
    SharedDirectory directory;
    const CkptSpec spec = CkptSpec().kind(kind);
    ShardedRun saved(make, 1);
    for (int64_t step = 0; step < 2; ++step) saved.step(step);
    int64_t number = 0;
    // Another count for every parameter; the largest cannot be held by a float.
    for (const ShardedParameter& parameter : saved.sharded->parameters()) {
      const auto found = saved.optimizer->state().find(parameter.leaf.unsafeGetTensorImpl());
      if (found != saved.optimizer->state().end())
        static_cast<AdamParamState&>(*found->second).step(++number + (int64_t{1} << 40));
    }
    ASSERT_GT(number, 4);
    save_checkpoint(directory / "c", TrainState(*saved.sharded, *saved.optimizer), spec, 2,
                    SaveOptions().sync(false));
    ShardedRun fresh(make, 2);
    TrainState state(*fresh.sharded, *fresh.optimizer);
    load_checkpoint(directory / "c", state, spec);
    assert_step_present(*fresh.optimizer, *fresh.sharded);
    number = 0;
    for (const ShardedParameter& parameter : fresh.sharded->parameters()) {
      const auto found = fresh.optimizer->state().find(parameter.leaf.unsafeGetTensorImpl());
      const bool trained = parameter.leaf.requires_grad() && !parameter.fqn.starts_with("unused");
      ASSERT_EQ(found != fresh.optimizer->state().end(), trained) << parameter.fqn;
      if (trained) {
        EXPECT_EQ(static_cast<const AdamParamState&>(*found->second).step(),
                  ++number + (int64_t{1} << 40))
            << parameter.fqn;
      }
    }
  }
}

// The first thing after a load may be an evaluation: what peers read must be what was loaded.
TEST(CheckpointFsdpMore, EvaluationRightAfterALoad) {
  const Case test = cases()[2];
  SharedDirectory directory;
  ShardedRun saved(test.saved, 1);
  saved.step(0);
  const TrainState state(*saved.sharded, *saved.optimizer);
  save_checkpoint(directory / "c", state, {}, 1, SaveOptions().sync(false));
  const auto evaluate = [](ShardedRun& run) {
    torch::NoGradGuard no_grad;
    run.net->eval();
    const double loss = run.net->forward(torch::arange(53, torch::kInt64)).item<double>();
    run.net->train();
    return loss;
  };
  ShardedRun loaded(test.fresh, 2);
  evaluate(loaded);  // gathered once with the old values
  TrainState target(*loaded.sharded, *loaded.optimizer);
  const LoadReport report = load_checkpoint(directory / "c", target, {});
  EXPECT_EQ(report.step, 1);
  EXPECT_EQ(report.stored_world_size, world_size());
  if (world_size() == 1) {
    EXPECT_EQ(evaluate(loaded), evaluate(saved));
  } else {
    EXPECT_NEAR(evaluate(loaded), evaluate(saved), 1e-6);
  }
  EXPECT_THROW(save_checkpoint(directory / "c", state, {}, 1), UsageError);
}

TEST(CheckpointFsdpMore, AnOptimizerBuiltBeforeWrappingIsRefused) {  // A4
  SharedDirectory directory;
  torch::manual_seed(1);
  Net net;
  torch::optim::Adagrad early(net->parameters());
  const Sharded sharded = fully_shard(*net, runtime().mesh(), units());
  try {
    save_checkpoint(directory / "c", TrainState(sharded, early), {}, 0);
    ADD_FAILURE() << "saved";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("after fully_shard()"), HasSubstr("a.weight")));
  }
}

// BL-01, A10: LibTorch's own Adagrad fails at the first step of a group that was added later.
TEST(AdagradSumSurvives, AGroupAddedAfterConstructionTrains) {
  torch::manual_seed(1);
  torch::nn::Linear model(4, 3);
  Sharded sharded = fully_shard(*model, runtime().mesh());
  torch::optim::Adagrad optimizer(std::vector<Tensor>{model->named_parameters()["weight"]},
                                  torch::optim::AdagradOptions(0.1).initial_accumulator_value(0.5));
  optimizer.add_param_group(torch::optim::OptimizerParamGroup({model->named_parameters()["bias"]}));
  TrainState state(sharded, optimizer);
  model->forward(torch::ones({2, 4})).sum().backward();
  optimizer.step();
  for (const auto& parameter : sharded.parameters()) {
    const auto& kept = static_cast<const torch::optim::AdagradParamState&>(
        *optimizer.state().at(parameter.leaf.unsafeGetTensorImpl()));
    EXPECT_EQ(kept.step(), 1) << parameter.fqn;
    EXPECT_TRUE(torch::equal(kept.sum(), torch::full_like(kept.sum(), 4.5))) << parameter.fqn;
  }
}

// Two models, two optimizers, an average of weights, counters of each rank and a nested value.
TEST(CheckpointFsdpMore, EverythingOfAUserComesBack) {
  SharedDirectory directory;
  const auto rows = [](const ShardedRun& run, const std::string& fqn) {
    for (const ShardedParameter& parameter : run.sharded->parameters())
      if (parameter.fqn == fqn) return parameter.leaf.detach().clone();
    throw Error("no parameter " + fqn);
  };
  struct All {
    All(const Case& test, uint64_t seed) : net(test.saved, seed), critic(test.fresh, seed + 1) {}
    ShardedRun net, critic;
    Tensor average, counts = torch::zeros({2}, torch::kInt64);
    ItemValue sampler = ItemValue::Dict{};
    TrainState state() {
      TrainState out(*net.sharded, *net.optimizer);
      out.model("critic", *critic.sharded, *critic.optimizer)
          .tensor("average", ItemTensor::sharded_like("table.weight", average))
          .tensor("counts", ItemTensor::per_rank(counts))
          .item("sampler", [this] { return sampler; }, [this](const ItemValue& v) { sampler = v; });
      return out;
    }
  };
  for (const StateDictKind kind : {StateDictKind::kSharded, StateDictKind::kFull}) {
    const CkptSpec spec = CkptSpec().kind(kind);
    const std::string path = directory / ("c" + std::to_string(static_cast<int>(kind)));
    All saved(cases()[1], 1), loaded(cases()[1], 5);
    for (int64_t step = 0; step < 2; ++step) saved.net.step(step);
    saved.critic.step(0);
    saved.average = rows(saved.net, "table.weight").mul_(0.5);
    saved.counts.fill_(rank() + 7);
    saved.sampler = ItemValue::Dict{{"epoch", 3}, {"seen", ItemValue::List{1, 2.5, "x"}}};
    loaded.average = torch::zeros_like(rows(loaded.net, "table.weight"));
    save_checkpoint(path, saved.state(), spec, 2, SaveOptions().sync(false));
    TrainState target = loaded.state();
    load_checkpoint(path, target, spec);
    expect_equal(loaded.net, saved.net);
    expect_equal(loaded.critic, saved.critic);
    EXPECT_TRUE(torch::equal(loaded.average, saved.average));
    EXPECT_TRUE(torch::equal(loaded.counts, saved.counts));
    EXPECT_TRUE(loaded.sampler == saved.sampler);
    torch::manual_seed(9);  // of the dropout
    const double loss = loaded.critic.step(1);
    torch::manual_seed(9);
    EXPECT_EQ(loss, saved.critic.step(1));
    expect_equal(loaded.critic, saved.critic);
  }
}

TEST(CheckpointFsdpMore, LbfgsIsRefusedWithTheReason) {
  torch::manual_seed(1);
  torch::nn::Linear model(4, 3);
  Sharded sharded = fully_shard(*model, runtime().mesh());
  torch::optim::LBFGS optimizer(model->parameters(), torch::optim::LBFGSOptions(0.1));
  try {
    TrainState state(sharded, optimizer);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("LBFGS"), HasSubstr("inner products")));
  }
}

TEST(CheckpointFsdpMore, AnotherModelIsRefusedWithEveryMismatchAndNothingChanges) {
  SharedDirectory directory;
  const Case test = cases()[3];
  ShardedRun saved(test.saved, 1);
  save_checkpoint(directory / "c", TrainState(*saved.sharded, *saved.optimizer), {}, 0,
                  SaveOptions().sync(false));
  torch::manual_seed(3);
  torch::nn::Sequential other(torch::nn::Linear(12, 17), torch::nn::Linear(5, 3));
  const Sharded sharded = fully_shard(*other, runtime().mesh());
  torch::optim::Adagrad optimizer(other->parameters());
  std::vector<Tensor> before;
  for (const ShardedParameter& parameter : sharded.parameters())
    before.push_back(parameter.leaf.detach().clone());
  TrainState state(sharded, optimizer);
  try {
    load_checkpoint(directory / "c", state, {});
    ADD_FAILURE() << "loaded";
  } catch (const LayoutError& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("'model.0.weight' [17, 12]: missing"),
                      HasSubstr("'model.a.weight' [17, 12]: in the checkpoint, but not here"),
                      HasSubstr("nothing was changed")));
  }
  for (size_t i = 0; i < before.size(); ++i)
    EXPECT_TRUE(torch::equal(sharded.parameters()[i].leaf, before[i]));
}

TEST(CheckpointFsdpMore, TheContextIsTheKeySpace) {
  ShardedRun run(cases()[1].saved, 1);
  run.step(0);
  const TrainState state(*run.sharded, *run.optimizer);
  const StateDictContext context = make_state_dict_context(state, CkptSpec().key_prefix("p."));
  std::set<std::string> keys;
  for (const StateEntry& entry : context.entries()) keys.insert(entry.key);
  for (const char* key :
       {"p.model.table.weight", "p.model.norm.running_mean", "p.model.norm.num_batches_tracked",
        "p.model.scale", "p.optim.state.a.weight.exp_avg", "p.optim.state.a.weight.step",
        "p.optim.state.scale.max_exp_avg_sq", "p.rng.cpu"})
    EXPECT_TRUE(keys.contains(key)) << key;
  EXPECT_FALSE(keys.contains("p.optim.state.frozen.weight.step"));
  EXPECT_EQ(context.entries_of("p.optim.state.a.weight.").size(), 4U);
  EXPECT_NE(CkptSpec().fingerprint(), CkptSpec().key_prefix("p.").fingerprint());
}

}  // namespace
}  // namespace tessera::test
