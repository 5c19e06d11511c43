// What happens to optimizer state in the situations in which PyTorch loses it, swaps it or fails
// (names A.., B..), and the faults of other checkpointers (BL-..), at 1, 2 and 3 simulated ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/optim/schedulers/step_lr.h>

#include "checkpoint/context.h"
#include "checkpoint/manifest.h"
#include "tessera/error.h"
#include "unit/checkpoint_fleet.h"
#include "unit/io_temp_directory.h"

namespace tessera::checkpoint {
namespace {

using io::TempDirectory;
using testing::AllOf;
using testing::HasSubstr;
using namespace torch::optim;

const MakeOptimizer kAdam = make_optimizer<Adam>(AdamOptions(1e-2));
const MakeOptimizer kAdagrad =
    make_optimizer<Adagrad>(AdagradOptions(1e-2).initial_accumulator_value(0.5));

io::FileSystem& files() { return io::real_file_system(); }

void save(FleetRank& rank, comm::Communicator& communicator, const std::string& path,
          const CkptSpec& spec = {}, int64_t step = 1) {
  save_state(files(), rank.live(communicator), spec, {path, false}, step,
             SaveOptions().sync(false));
}

LoadReport load(FleetRank& rank, comm::Communicator& communicator, const std::string& path,
                const CkptSpec& spec = {}, const LoadOptions& options = {}) {
  return load_state(files(), path, rank.live(communicator), spec, options);
}

// The message of the LayoutError with which the load must end, on every rank the same text.
std::string refusal(FleetRank& rank, comm::Communicator& communicator, const std::string& path,
                    const CkptSpec& spec = {}, const LoadOptions& options = {}) {
  try {
    load(rank, communicator, path, spec, options);
  } catch (const LayoutError& error) {
    return error.what();
  }
  return "loaded";
}

std::string all_notes(const LoadReport& report) {
  std::string text;
  for (const std::string& note : report.notes) text += note + "\n";
  return text;
}

class CheckpointCases : public testing::TestWithParam<int> {
 protected:
  // Runs on every simulated rank of the world.
  void ranks(const std::function<void(comm::Communicator&)>& body, int world = 0) {
    expect_no_errors(test::run_ranks(world > 0 ? world : GetParam(), body));
  }
  FleetRank rank_of(comm::Communicator& communicator, const MakeOptimizer& make, double offset = 0,
                    std::vector<ParameterSpec> model = awkward_model()) {
    return FleetRank(std::move(model), communicator.rank(), communicator.world_size(), make,
                     even_split, offset);
  }
  TempDirectory temp_;
  const std::string path_ = temp_ / "c";
};
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

TEST_P(CheckpointCases, B1_AbsentInTheFileIsAbsentAfterTheLoad) {  // B4, B10, B20
  ranks([&](comm::Communicator& communicator) {
    FleetRank saved = rank_of(communicator, kAdam);
    save(saved, communicator, path_);               // no step yet
    EXPECT_TRUE(saved.optimizer->state().empty());  // reading state makes none
    FleetRank loaded = rank_of(communicator, kAdam, 3);
    loaded.train(0, 2);
    EXPECT_FALSE(loaded.optimizer->state().empty());
    const LoadReport report = load(loaded, communicator, path_);
    EXPECT_TRUE(loaded.optimizer->state().empty());
    EXPECT_THAT(all_notes(report),
                HasSubstr("'a.weight' has no optimizer state in the checkpoint"));
    saved.train(0, 2);
    loaded.train(0, 2);
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

TEST_P(CheckpointCases, BL04_BL05_CountersKeepTypeAndValue) {
  ranks([&](comm::Communicator& communicator) {
    FleetRank saved = rank_of(communicator, kAdam, 0, {{"w", {5, 2}, torch::kBFloat16}});
    saved.train(0, 1);
    static_cast<AdamParamState&>(*saved.optimizer->state().begin()->second)
        .step((int64_t{1} << 53) + 1);
    for (const auto kind : {StateDictKind::kSharded, StateDictKind::kFull, StateDictKind::kLocal}) {
      const std::string path = temp_ / ("k" + std::to_string(static_cast<int>(kind)));
      save(saved, communicator, path, CkptSpec().kind(kind));
      FleetRank loaded = rank_of(communicator, kAdam, 3, {{"w", {5, 2}, torch::kBFloat16}});
      load(loaded, communicator, path, CkptSpec().kind(kind));
      EXPECT_EQ(loaded.state("w").at("step").toInt(), (int64_t{1} << 53) + 1);
      expect_same_state(loaded, saved);
    }
  });
}

TEST_P(CheckpointCases, BL09_NoOptimizerStateIsRefusedOrAskedFor) {
  ranks([&](comm::Communicator& communicator) {
    FleetRank saved = rank_of(communicator, kAdam);
    saved.train(0, 2);
    save(saved, communicator, path_, CkptSpec().with_optimizer(false));
    FleetRank loaded = rank_of(communicator, kAdam, 3);
    EXPECT_THAT(refusal(loaded, communicator, path_), HasSubstr("allow_fresh_optimizer"));
    const LoadReport report =
        load(loaded, communicator, path_, {}, LoadOptions().allow_fresh_optimizer(true));
    EXPECT_THAT(all_notes(report), HasSubstr("stays as it is"));
    EXPECT_TRUE(loaded.optimizer->state().empty());
    EXPECT_TRUE(torch::equal(loaded.parameters[0].leaf, saved.parameters[0].leaf));
  });
}

TEST_P(CheckpointCases, BL03_ADifferentSpecIsNamed) {
  ranks([&](comm::Communicator& communicator) {
    FleetRank saved = rank_of(communicator, kAdam);
    saved.train(0, 1);
    save(saved, communicator, path_, CkptSpec().key_prefix("teacher."));
    FleetRank loaded = rank_of(communicator, kAdam, 3);
    EXPECT_THAT(refusal(loaded, communicator, path_),
                AllOf(HasSubstr("'key_prefix'"), HasSubstr("teacher."), HasSubstr("1 mismatches")));
    EXPECT_THAT(refusal(loaded, communicator, path_,
                        CkptSpec().key_prefix("teacher.").dtype_policy(DtypePolicy::kConvert)),
                HasSubstr("'dtype_policy'"));
    load(loaded, communicator, path_, CkptSpec().key_prefix("teacher."));
    expect_same_state(loaded, saved);
  });
}

TEST_P(CheckpointCases, BL28_TiedParametersAreStoredOnce) {
  ranks([&](comm::Communicator& communicator) {
    FleetRank saved = rank_of(communicator, kAdam);
    saved.train(0, 2);
    save(saved, communicator, path_);
    if (communicator.rank() == 0) {
      const Manifest manifest = read_manifest(files(), path_);
      EXPECT_EQ(manifest.aliases.at("head.weight"), "embed.weight");
      EXPECT_EQ(manifest.find("model.head.weight"), nullptr);
    }
    // The other alias is the first name here.
    auto model = awkward_model();
    std::swap(model[0].name, model[0].aliases[0]);
    FleetRank loaded = rank_of(communicator, kAdam, 3, model);
    load(loaded, communicator, path_);
    EXPECT_TRUE(torch::equal(loaded.parameters[0].leaf, saved.parameters[0].leaf));
    EXPECT_TRUE(torch::equal(loaded.state("head.weight").at("exp_avg").toTensor(),
                             saved.state("embed.weight").at("exp_avg").toTensor()));
    // Two parameters where the checkpoint has one.
    model[0].aliases.clear();
    model.push_back({"embed.weight", {53, 6}});
    FleetRank untied = rank_of(communicator, kAdam, 3, model);
    EXPECT_THAT(refusal(untied, communicator, path_),
                AllOf(HasSubstr("one tied parameter in the checkpoint"), HasSubstr("two here")));
  });
}

TEST_P(CheckpointCases, BL42_AllMismatchesAtOnceAndNothingChanged) {
  ranks([&](comm::Communicator& communicator) {
    FleetRank saved = rank_of(communicator, kAdam);
    saved.train(0, 2);
    save(saved, communicator, path_);
    auto model = awkward_model();
    model[1].shape = {7, 6};          // a.weight
    model[2].name = "a.bias2";        // missing here, unexpected there
    model[3].shape = {17, 1};         // same number of elements
    model[7].dtype = torch::kDouble;  // frozen
    FleetRank loaded = rank_of(communicator, kAdam, 3, model);
    FleetRank before = rank_of(communicator, kAdam, 3, model);
    EXPECT_THAT(refusal(loaded, communicator, path_),
                AllOf(HasSubstr("'model.a.weight': shape [7, 5] in the checkpoint, [7, 6] here"),
                      HasSubstr("'model.a.bias2' [7]: missing in the checkpoint"),
                      HasSubstr("'model.a.bias' [7]: in the checkpoint, but not here"),
                      HasSubstr("'model.row': shape [1, 17] in the checkpoint, [17, 1] here"),
                      HasSubstr("'model.frozen': dtype F32 in the checkpoint, F64 here"),
                      HasSubstr("the optimizer state of 'a.weight' is for shape [7, 5]"),
                      HasSubstr("nothing was changed")));
    expect_same_state(loaded, before);
  });
}

TEST_P(CheckpointCases, BL39_ConversionOnlyWhenAskedForAndReported) {
  const CkptSpec convert = CkptSpec().dtype_policy(DtypePolicy::kConvert);
  ranks([&](comm::Communicator& communicator) {
    FleetRank saved = rank_of(communicator, kAdam, 0, {{"w", {5, 2}}});
    saved.train(0, 2);
    save(saved, communicator, path_, convert);
    FleetRank loaded = rank_of(communicator, kAdam, 3, {{"w", {5, 2}, torch::kDouble}});
    const LoadReport report = load(loaded, communicator, path_, convert);
    EXPECT_TRUE(
        torch::equal(loaded.parameters[0].leaf, saved.parameters[0].leaf.to(torch::kDouble)));
    EXPECT_EQ(loaded.state("w").at("exp_avg").toTensor().scalar_type(), torch::kDouble);
    EXPECT_THAT(all_notes(report), AllOf(HasSubstr("'model.w' converted from F32 to F64"),
                                         HasSubstr("'optim.state.w.exp_avg' converted")));
  });
}

TEST_P(CheckpointCases, BL36_BL38_BL40_BuffersOfEveryFormAndType) {
  ranks([&](comm::Communicator& communicator) {
    const auto fill = [&](FleetRank& rank, int64_t shift) {
      rank.buffers.clear();
      for (const auto type :
           {torch::kBool, torch::kByte, torch::kChar, torch::kShort, torch::kInt, torch::kLong,
            torch::kHalf, torch::kBFloat16, torch::kFloat, torch::kDouble, torch::kComplexFloat,
            torch::kFloat8_e5m2, torch::kFloat8_e4m3fn})
        rank.buffers.push_back({std::string("b.") + c10::toString(type),
                                (torch::arange(6) + shift).remainder(5).to(type)});
      const Tensor base = torch::arange(40, torch::kFloat) + static_cast<double>(shift);
      rank.buffers.push_back({"transposed", base.narrow(0, 0, 12).reshape({3, 4}).t()});
      rank.buffers.push_back({"narrow", base.narrow(0, 5, 7)});
      rank.buffers.push_back(
          {"expanded", (torch::ones({1, 3}) * (1.0 + static_cast<double>(shift))).expand({4, 3})});
      rank.buffers.push_back({"nothing", torch::empty({0, 3})});
      rank.buffers.push_back({"scalar", torch::tensor(2.5) + static_cast<double>(shift)});
      rank.buffers.push_back({"undefined", Tensor()});
    };
    for (const auto kind : {StateDictKind::kSharded, StateDictKind::kFull, StateDictKind::kLocal}) {
      const std::string path = temp_ / ("k" + std::to_string(static_cast<int>(kind)));
      FleetRank saved = rank_of(communicator, {});
      fill(saved, 0);
      save(saved, communicator, path, CkptSpec().kind(kind));
      FleetRank loaded = rank_of(communicator, {}, 3);
      fill(loaded, 2);
      load(loaded, communicator, path, CkptSpec().kind(kind));
      for (size_t i = 0; i < saved.buffers.size(); ++i) {
        if (!saved.buffers[i].tensor.defined()) continue;
        const Tensor a = loaded.buffers[i].tensor.contiguous(),
                     b = saved.buffers[i].tensor.contiguous();
        ASSERT_EQ(a.nbytes(), b.nbytes());
        EXPECT_TRUE(a.nbytes() == 0 || std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0)
            << saved.buffers[i].fqn;
      }
    }
    FleetRank refused = rank_of(communicator, {});
    refused.buffers.push_back({"z", torch::zeros({2}, torch::kComplexDouble)});
    EXPECT_THROW(save(refused, communicator, temp_ / "z"), UsageError);
  });
}

TEST_P(CheckpointCases, BL66_GeneratorsAreEachRanksOwn) {
  const auto draw = [](FleetRank& rank) { return torch::rand({3}, rank.generator); };
  ranks([&](comm::Communicator& communicator) {
    FleetRank saved = rank_of(communicator, {});
    for (int i = 0; i <= communicator.rank(); ++i) draw(saved);
    save(saved, communicator, path_);
    const Tensor expected = draw(saved);
    FleetRank loaded = rank_of(communicator, {}, 3);
    load(loaded, communicator, path_);
    EXPECT_TRUE(torch::equal(draw(loaded), expected));
  });
  // At another world size: reproducible, different on each rank, reported.
  const int other = GetParam() + 1;
  std::vector<std::vector<Tensor>> drawn(2, std::vector<Tensor>(static_cast<size_t>(other)));
  for (auto& attempt : drawn) {
    ranks(
        [&](comm::Communicator& communicator) {
          FleetRank loaded = rank_of(communicator, {}, 3);
          EXPECT_THAT(all_notes(load(loaded, communicator, path_)), HasSubstr("random numbers"));
          attempt[static_cast<size_t>(communicator.rank())] = draw(loaded);
        },
        other);
  }
  for (size_t rank = 0; rank < drawn[0].size(); ++rank)
    EXPECT_TRUE(torch::equal(drawn[0][rank], drawn[1][rank]));
  EXPECT_FALSE(torch::equal(drawn[0][0], drawn[0][1]));
}

TEST_P(CheckpointCases, BuffersThatDifferAreKeptPerRankOrTakenFromRank0) {
  ranks([&](comm::Communicator& communicator) {
    FleetRank saved = rank_of(communicator, {});  // norm.mean differs by rank
    save(saved, communicator, path_);
    FleetRank loaded = rank_of(communicator, {}, 3);
    load(loaded, communicator, path_);
    for (size_t i = 0; i < saved.buffers.size(); ++i)
      EXPECT_TRUE(torch::equal(loaded.buffers[i].tensor, saved.buffers[i].tensor))
          << saved.buffers[i].fqn;
  });
  ranks(
      [&](comm::Communicator& communicator) {
        FleetRank loaded = rank_of(communicator, {}, 3);
        const LoadReport report = load(loaded, communicator, path_);
        EXPECT_TRUE(torch::equal(loaded.buffers[0].tensor, torch::arange(5, torch::kFloat)));
        if (GetParam() > 1) {
          EXPECT_THAT(all_notes(report), HasSubstr("take rank 0's"));
        }
      },
      4);
}

TEST_P(CheckpointCases, BL31_SchedulersAndItems) {
  ranks([&](comm::Communicator& communicator) {
    FleetRank saved = rank_of(communicator, kAdam);
    StepLR schedule(*saved.optimizer, 3, 0.5);
    for (int step = 0; step < 7; ++step) {
      saved.train(step, 1);
      schedule.step();
    }
    LiveState live = saved.live(communicator);
    live.schedulers["lr"] = &schedule;
    live.items = {{"epoch", {[] { return ItemValue(int64_t{4}); }, {}}},
                  {"loss", {[] { return ItemValue(1.0); }, {}}},
                  {"nan", {[] { return ItemValue(std::nan("")); }, {}}},
                  {"done", {[] { return ItemValue(true); }, {}}},
                  {"file", {[] { return ItemValue(std::string("a\n\"b\"")); }, {}}}};
    save_state(files(), live, {}, {path_, false}, 7, SaveOptions().sync(false));
    FleetRank loaded = rank_of(communicator, kAdam, 3);
    StepLR fresh(*loaded.optimizer, 3, 0.5);
    std::map<std::string, ItemValue> seen;
    LiveState target = loaded.live(communicator);
    target.schedulers["lr"] = &fresh;
    const auto add = [&](const std::string& name, ItemValue current) {
      target.items[name] = {[current] { return current; },
                            [&seen, name](const ItemValue& value) { seen[name] = value; }};
    };
    add("epoch", int64_t{0});
    add("loss", 0.0);
    add("nan", 0.0);
    add("file", std::string());
    const LoadReport report = load_state(files(), path_, target, {}, {});
    EXPECT_EQ(std::get<int64_t>(seen.at("epoch")), 4);
    EXPECT_EQ(std::get<double>(seen.at("loss")), 1.0);
    EXPECT_TRUE(std::isnan(std::get<double>(seen.at("nan"))));
    EXPECT_EQ(std::get<std::string>(seen.at("file")), "a\n\"b\"");
    EXPECT_THAT(all_notes(report),
                HasSubstr("item 'done' of the checkpoint is not used here: true"));  // BL-81
    const double rate = saved.optimizer->param_groups()[0].options().get_lr();
    EXPECT_EQ(loaded.optimizer->param_groups()[0].options().get_lr(), rate);
    for (int step = 7; step < 12; ++step) {
      schedule.step();
      fresh.step();
      EXPECT_EQ(loaded.optimizer->param_groups()[0].options().get_lr(),
                saved.optimizer->param_groups()[0].options().get_lr());
    }
    target.items.clear();
    add("epoch", 1.0);
    add("absent", true);
    try {
      load_state(files(), path_, target, {}, {});
      ADD_FAILURE();
    } catch (const LayoutError& error) {
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr("item 'epoch' is integer in the checkpoint, double here"),
                        HasSubstr("item 'absent': missing")));
    }
  });
}

TEST_P(CheckpointCases, PartsMayBeLeftOutAtLoadButNotAsked) {
  ranks([&](comm::Communicator& communicator) {
    FleetRank saved = rank_of(communicator, kAdam);
    saved.train(0, 2);
    save(saved, communicator, path_, CkptSpec().with_rng(false));
    FleetRank loaded = rank_of(communicator, kAdam, 3);
    EXPECT_THAT(refusal(loaded, communicator, path_), HasSubstr("'rng'"));
    const CkptSpec only_optimizer = CkptSpec().with_rng(false).with_model(false);
    load(loaded, communicator, path_, only_optimizer);
    EXPECT_EQ(loaded.state("a.weight").at("step").toInt(), 2);
    EXPECT_FALSE(torch::equal(loaded.parameters[0].leaf, saved.parameters[0].leaf) &&
                 loaded.parameters[0].leaf.numel() > 0);
  });
}

}  // namespace
}  // namespace tessera::checkpoint
