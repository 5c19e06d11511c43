// What happens to optimizer state in the situations in which PyTorch loses it, swaps it or fails:
// the names are those of the cases A.. and B.., at 1, 2 and 3 simulated ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/checkpoint_cases.h"

namespace tessera::checkpoint {
namespace {

INSTANTIATE_TEST_SUITE_P(Worlds, CheckpointCases, testing::Values(1, 2, 3));

TEST_P(CheckpointCases, A1_AdagradBeforeAnyStep) {
  for (const auto kind : {StateDictKind::kSharded, StateDictKind::kFull, StateDictKind::kLocal}) {
    const std::string path = temp_ / ("k" + std::to_string(static_cast<int>(kind)));
    const CkptSpec spec = CkptSpec().kind(kind);
    ranks([&](comm::Communicator& communicator) {
      FleetRank saved = rank_of(communicator, kAdagrad);
      save(saved, communicator, path, spec);
      FleetRank loaded = rank_of(communicator, make_optimizer<Adagrad>(AdagradOptions(1.0)), 3);
      loaded.train(0, 2);
      load(loaded, communicator, path, spec);
      for (const ShardedParameter& parameter : loaded.parameters) {
        const auto state = loaded.state(parameter.fqn);
        ASSERT_EQ(state.size(), 2U) << parameter.fqn;
        EXPECT_EQ(state.at("step").toInt(), 0);
        EXPECT_EQ(state.at("sum").toTensor().sizes(), parameter.leaf.sizes());
        // full_like on a byte parameter truncates 0.5.
        const double initial = c10::isFloatingType(parameter.leaf.scalar_type()) ? 0.5 : 0;
        EXPECT_TRUE(state.at("sum").toTensor().eq(initial).all().item<bool>()) << parameter.fqn;
      }
    });
  }
}

// A serializer with a list of keys fails where this one does not: it would not see `sum`.
TEST_P(CheckpointCases, A3_AWhitelistOfKeysLosesSum) {
  ranks([&](comm::Communicator& communicator) {
    FleetRank rank = rank_of(communicator, kAdagrad);
    rank.train(0, 2);
    const StateDictContext context = ContextBuilder::build(rank.live(communicator), CkptSpec());
    const std::set<std::string> adam_keys = {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
    size_t seen = 0, whitelisted = 0;
    for (const StateEntry* entry : context.entries_of("optim.state.a.weight.")) {
      ++seen;
      whitelisted += adam_keys.count(entry->state_key);
    }
    EXPECT_EQ(seen, 2U);
    EXPECT_EQ(whitelisted, 1U);
  });
}

TEST_P(CheckpointCases, A4_OptimizerBuiltOnOtherTensorsIsRefused) {
  ranks([&](comm::Communicator& communicator) {
    FleetRank rank = rank_of(communicator, kAdam);
    rank.optimizer = kAdam({torch::ones({7, 5}).set_requires_grad(true)});
    const auto attempt = [&](const std::function<void()>& act) {
      try {
        act();
      } catch (const UsageError& error) {
        return std::string(error.what());
      }
      return std::string("accepted");
    };
    const auto expected =
        AllOf(HasSubstr("[7, 5]"), HasSubstr("after fully_shard()"), HasSubstr("a.weight"));
    EXPECT_THAT(attempt([&] { save(rank, communicator, path_); }), expected);
    EXPECT_FALSE(files().exists(path_));
    FleetRank good = rank_of(communicator, kAdam);
    good.train(0, 1);
    save(good, communicator, path_);
    EXPECT_THAT(attempt([&] { load(rank, communicator, path_); }),
                HasSubstr("after fully_shard()"));
  });
}

TEST_P(CheckpointCases, A5_ParametersSwappedInsideTheGroupsAreRefused) {
  ranks([&](comm::Communicator& communicator) {
    FleetRank rank = rank_of(communicator, kAdagrad);
    // One of the group's parameters is replaced; the state of the old one is left behind.
    const Tensor old = rank.parameters[1].leaf;
    rank.parameters[1].leaf = old.detach().clone().set_requires_grad(true);
    rank.optimizer->param_groups()[0].params()[1] = rank.parameters[1].leaf;
    EXPECT_THROW(save(rank, communicator, path_), UsageError);
  });
}

TEST_P(CheckpointCases, A10_LateGroupsKeepTheirNumbers) {  // BL-01, BL-30
  ranks([&](comm::Communicator& communicator) {
    const auto build = [&](FleetRank& rank, double lr) {
      auto options = std::make_unique<AdamOptions>(lr);
      std::vector<OptimizerParamGroup> groups;
      groups.emplace_back(std::vector<Tensor>{rank.parameters[0].leaf, rank.parameters[1].leaf},
                          std::make_unique<AdamOptions>(AdamOptions(lr * 2).betas({0.5, 0.6})));
      groups.emplace_back(std::vector<Tensor>{}, std::make_unique<AdamOptions>(lr * 3));
      rank.optimizer = std::make_unique<Adam>(groups, AdamOptions(lr));
      rank.optimizer->add_param_group(
          OptimizerParamGroup({rank.parameters[2].leaf},
                              std::make_unique<AdamOptions>(AdamOptions(lr * 4).amsgrad(true))));
    };
    FleetRank saved = rank_of(communicator, kAdam);
    build(saved, 1e-3);
    saved.train(0, 3);
    save(saved, communicator, path_);
    FleetRank loaded = rank_of(communicator, kAdam, 3);
    build(loaded, 7e-2);
    load(loaded, communicator, path_);
    const auto& groups = loaded.optimizer->param_groups();
    ASSERT_EQ(groups.size(), 3U);
    EXPECT_EQ(static_cast<const AdamOptions&>(groups[0].options()).lr(), 2e-3);
    EXPECT_EQ(std::get<1>(static_cast<const AdamOptions&>(groups[0].options()).betas()), 0.6);
    EXPECT_EQ(static_cast<const AdamOptions&>(groups[1].options()).lr(), 3e-3);
    EXPECT_EQ(static_cast<const AdamOptions&>(groups[2].options()).lr(), 4e-3);
    for (const char* name : {"embed.weight", "a.weight", "a.bias"})
      EXPECT_TRUE(torch::equal(loaded.state(name).at("exp_avg").toTensor(),
                               saved.state(name).at("exp_avg").toTensor()));
    EXPECT_TRUE(loaded.state("a.bias").contains("max_exp_avg_sq"));
    // A parameter in another group than at the save.
    FleetRank moved = rank_of(communicator, kAdam, 3);
    build(moved, 7e-2);
    std::swap(moved.optimizer->param_groups()[0].params()[0],
              moved.optimizer->param_groups()[2].params()[0]);
    EXPECT_THAT(refusal(moved, communicator, path_),
                AllOf(HasSubstr("group 0"), HasSubstr("group 2")));
    // A group of the checkpoint that the optimizer lacks.
    FleetRank fewer = rank_of(communicator, kAdam, 3);
    fewer.optimizer = std::make_unique<Adam>(
        std::vector<Tensor>{fewer.parameters[0].leaf, fewer.parameters[1].leaf});
    EXPECT_THAT(refusal(fewer, communicator, path_),
                AllOf(HasSubstr("a.bias"), HasSubstr("group 2")));
  });
}

TEST_P(CheckpointCases, A10_LateAdagradGroupsCanStepAfterALoad) {  // BL-01
  ranks([&](comm::Communicator& communicator) {
    FleetRank saved = rank_of(communicator, {});
    saved.optimizer = kAdagrad({saved.parameters[0].leaf, saved.parameters[1].leaf});
    // Its state is missing, as LibTorch leaves it.
    saved.optimizer->add_param_group(OptimizerParamGroup({saved.parameters[2].leaf}));
    save(saved, communicator, path_);
    FleetRank loaded = rank_of(communicator, {}, 3);
    loaded.optimizer = kAdagrad({loaded.parameters[0].leaf, loaded.parameters[1].leaf});
    loaded.optimizer->add_param_group(OptimizerParamGroup({loaded.parameters[2].leaf}));
    load(loaded, communicator, path_);
    EXPECT_EQ(loaded.state("a.bias").at("step").toInt(), 0);
    EXPECT_TRUE(loaded.state("a.bias").at("sum").toTensor().eq(0.5).all().item<bool>());
    loaded.train(0, 2);
    EXPECT_EQ(loaded.state("a.bias").at("step").toInt(), 2);
    save(loaded, communicator, temp_ / "next");
    FleetRank again = rank_of(communicator, {}, 3);
    again.optimizer = kAdagrad({again.parameters[0].leaf, again.parameters[1].leaf});
    again.optimizer->add_param_group(OptimizerParamGroup({again.parameters[2].leaf}));
    load(again, communicator, temp_ / "next");
    expect_same_state(again, loaded);
  });
}

TEST_P(CheckpointCases, B1_AbsentInTheFileIsAbsentAfterTheLoad) {  // B4, B10, B20
  ranks([&](comm::Communicator& communicator) {
    FleetRank saved = rank_of(communicator, kAdam);
    for (ShardedParameter& parameter : saved.parameters)  // gradients, but the step was skipped
      if (parameter.leaf.requires_grad())
        parameter.leaf.mutable_grad() = torch::ones_like(parameter.leaf);
    save(saved, communicator, path_);
    EXPECT_TRUE(saved.optimizer->state().empty());  // reading state makes none
    FleetRank loaded = rank_of(communicator, kAdam, 3);
    loaded.train(0, 2);
    EXPECT_FALSE(loaded.optimizer->state().empty());
    const LoadReport report = load(loaded, communicator, path_);
    EXPECT_TRUE(loaded.optimizer->state().empty());
    EXPECT_THAT(all_notes(report),
                HasSubstr("'a.weight' has no optimizer state in the checkpoint"));
    for (FleetRank* rank : {&saved, &loaded}) {
      rank->optimizer->zero_grad();
      rank->train(0, 2);
    }
    expect_same_state(loaded, saved);
  });
}

TEST_P(CheckpointCases, B2_StateIsCreatedInAFreshOptimizer) {  // BL-08, B20
  ranks([&](comm::Communicator& communicator) {
    FleetRank saved = rank_of(communicator, kAdam);
    saved.train(0, 3);
    save(saved, communicator, path_);
    FleetRank loaded = rank_of(communicator, kAdam, 3);
    load(loaded, communicator, path_);
    expect_same_state(loaded, saved);
    EXPECT_EQ(loaded.state("a.weight").at("step").toInt(), 3);
    // Twice is as good as once (BL-35), also over other state.
    loaded.train(3, 2);
    load(loaded, communicator, path_);
    expect_same_state(loaded, saved);
  });
}

TEST_P(CheckpointCases, B6_UnusedParametersHaveNoState) {
  ranks([&](comm::Communicator& communicator) {
    FleetRank saved = rank_of(communicator, kAdam);
    saved.train(0, 2);
    save(saved, communicator, path_);
    FleetRank loaded = rank_of(communicator, kAdam, 3);
    for (ParameterSpec& spec : loaded.specs) spec.used = true;
    loaded.train(0, 1);
    ASSERT_FALSE(loaded.state("unused.weight").empty());
    load(loaded, communicator, path_);
    EXPECT_TRUE(loaded.state("unused.weight").empty());
    EXPECT_TRUE(loaded.state("frozen").empty());
    EXPECT_EQ(loaded.state("a.weight").at("step").toInt(), 2);
  });
}

TEST_P(CheckpointCases, B7_FreezingAndUnfreezingKeepsState) {  // BL-11, BL-29
  ranks([&](comm::Communicator& communicator) {
    FleetRank saved = rank_of(communicator, kAdam);
    saved.train(0, 3);
    saved.parameters[1].leaf.set_requires_grad(false);  // a.weight, after 3 steps
    save(saved, communicator, path_);
    FleetRank loaded = rank_of(communicator, kAdam, 3);
    load(loaded, communicator, path_);
    EXPECT_TRUE(loaded.parameters[1].leaf.requires_grad());  // a load never changes it
    EXPECT_EQ(loaded.state("a.weight").at("step").toInt(), 3);
    // The reverse: frozen here and handed to no optimizer, trained there.
    FleetRank frozen = rank_of(communicator, {}, 3);
    frozen.parameters[1].leaf.set_requires_grad(false);
    std::vector<Tensor> rest;
    for (size_t i = 0; i < frozen.parameters.size(); ++i)
      if (i != 1) rest.push_back(frozen.parameters[i].leaf);
    frozen.optimizer = kAdam(rest);
    const LoadReport report = load(frozen, communicator, path_);
    EXPECT_FALSE(frozen.parameters[1].leaf.requires_grad());
    EXPECT_EQ(frozen.state("a.weight").at("step").toInt(), 3);
    EXPECT_THAT(all_notes(report), AllOf(HasSubstr("'a.weight'"), HasSubstr("kept")));
    frozen.optimizer->param_groups()[0].params().push_back(frozen.parameters[1].leaf);
    frozen.parameters[1].leaf.set_requires_grad(true);
    frozen.train(3, 2);
    EXPECT_EQ(frozen.state("a.weight").at("step").toInt(), 5);
  });
}

TEST_P(CheckpointCases, B9_ASwitchThatDiffersIsNamed) {
  ranks([&](comm::Communicator& communicator) {
    FleetRank saved = rank_of(communicator, kAdam);
    saved.train(0, 2);
    save(saved, communicator, path_);
    FleetRank loaded =
        rank_of(communicator, make_optimizer<Adam>(AdamOptions(1e-2).amsgrad(true)), 3);
    EXPECT_THAT(refusal(loaded, communicator, path_),
                AllOf(HasSubstr("'amsgrad'"), HasSubstr("group 0")));
    EXPECT_TRUE(loaded.optimizer->state().empty());
  });
}

// Changes the manifest's text and seals it again.
void edit_manifest(const std::string& path, const std::function<void(Manifest&)>& change) {
  Manifest manifest = read_manifest(files(), path);
  change(manifest);
  io::spill(io::join_path(path, kManifestName), encode_manifest(manifest));
}

TEST_P(CheckpointCases, B15_ARemovedStepIsNamedBeforeAnythingChanges) {  // B16
  ranks([&](comm::Communicator& communicator) {
    FleetRank saved = rank_of(communicator, kAdam);
    saved.train(0, 2);
    save(saved, communicator, path_);
    communicator.barrier();
    if (communicator.rank() == 0)
      edit_manifest(path_, [](Manifest& manifest) {
        std::erase_if(manifest.tensors,
                      [](const StoredTensor& t) { return t.key == "optim.state.a.weight.step"; });
        manifest.number_blocks();
      });
    communicator.barrier();
    FleetRank loaded = rank_of(communicator, kAdam, 3);
    loaded.train(0, 1);
    FleetRank before = rank_of(communicator, kAdam, 3);
    before.train(0, 1);
    EXPECT_THAT(refusal(loaded, communicator, path_),
                AllOf(HasSubstr("'a.weight' lacks 'step'"), HasSubstr("1 mismatches")));
    expect_same_state(loaded, before);
    if (communicator.rank() == 0)
      edit_manifest(path_, [](Manifest& manifest) {
        const size_t at = manifest.scalars_json.find("\"betas\"");
        manifest.scalars_json.replace(at, 7, "\"betaz\"");
      });
    communicator.barrier();
    EXPECT_THAT(refusal(loaded, communicator, path_),
                AllOf(HasSubstr("'betas'"), HasSubstr("missing")));
  });
}

TEST_P(CheckpointCases, B15_StepMissingEverywhereIsRefused) {
  ranks([&](comm::Communicator& communicator) {
    FleetRank saved = rank_of(communicator, kAdagrad);
    saved.train(0, 2);
    save(saved, communicator, path_);
    communicator.barrier();
    if (communicator.rank() == 0)
      edit_manifest(path_, [](Manifest& manifest) {
        std::erase_if(manifest.tensors,
                      [](const StoredTensor& t) { return t.state_key == "step"; });
        manifest.number_blocks();
      });
    communicator.barrier();
    FleetRank loaded = rank_of(communicator, kAdagrad, 3);
    EXPECT_THAT(refusal(loaded, communicator, path_),
                AllOf(HasSubstr("a.weight"), HasSubstr("cannot be created")));
  });
}

TEST_P(CheckpointCases, B19_NamesAndNotPositionsDecide) {
  ranks([&](comm::Communicator& communicator) {
    std::vector<ParameterSpec> model = {{"first", {6, 2}}, {"second", {6, 2}}};
    FleetRank saved = rank_of(communicator, kAdam, 0, model);
    saved.train(0, 2);
    save(saved, communicator, path_);
    FleetRank loaded = rank_of(communicator, {}, 3, {{"second", {6, 2}}, {"first", {6, 2}}});
    loaded.optimizer = kAdam({loaded.parameters[0].leaf, loaded.parameters[1].leaf});
    load(loaded, communicator, path_);
    for (const char* name : {"first", "second"}) {
      EXPECT_TRUE(torch::equal(loaded.parameter(name).leaf, saved.parameter(name).leaf)) << name;
      EXPECT_TRUE(torch::equal(loaded.state(name).at("exp_avg").toTensor(),
                               saved.state(name).at("exp_avg").toTensor()))
          << name;
    }
  });
}
}  // namespace
}  // namespace tessera::checkpoint
