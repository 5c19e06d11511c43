// Loads that take a part, rename, resize or leave out, and what they report.
#include "unit/checkpoint_cases.h"

namespace tessera::checkpoint {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Not;
using testing::UnorderedElementsAre;

class CheckpointPartial : public CheckpointCases {
 protected:
  // Saved by two ranks after three steps; `expected` is the same on one.
  void save_model(const std::vector<ParameterSpec>& model, const MakeOptimizer& make = kAdam) {
    ranks(
        [&](comm::Communicator& communicator) {
          FleetRank rank = rank_of(communicator, make, 0, model);
          rank.train(0, 3);
          save(rank, communicator, path_);
        },
        2);
  }
  static FleetRank unsharded(const std::vector<ParameterSpec>& model,
                             const MakeOptimizer& make = kAdam, double offset = 0) {
    FleetRank rank(model, 0, 1, make, even_split, offset);
    rank.train(0, 3);
    return rank;
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, CheckpointPartial, testing::Values(1, 2, 3));

void expect_rows(const Tensor& actual, const Tensor& full, const ShardedParameter& parameter) {
  EXPECT_TRUE(torch::equal(actual.detach(), rows_of(full.detach(), parameter))) << parameter.fqn;
}

TEST_P(CheckpointPartial, ChosenNamesAreLoadedWithTheirStateAndOthersStay) {
  save_model(awkward_model());
  const FleetRank saved = unsharded(awkward_model());
  ranks([&](comm::Communicator& communicator) {
    FleetRank rank = rank_of(communicator, kAdam, 2);
    rank.train(0, 1);
    const FleetRank before = [&] {
      FleetRank other = rank_of(communicator, kAdam, 2);
      other.train(0, 1);
      return other;
    }();
    const auto chosen = [](const std::string& name) { return name.starts_with("a."); };
    load(rank, communicator, path_, {}, LoadOptions().only(chosen));
    for (const ShardedParameter& parameter : rank.parameters) {
      const FleetRank& from = chosen(parameter.fqn) ? saved : before;
      const Tensor& whole = from.parameter(parameter.fqn).leaf;
      if (chosen(parameter.fqn))
        expect_rows(parameter.leaf, whole, parameter);
      else
        EXPECT_TRUE(torch::equal(parameter.leaf, whole)) << parameter.fqn;
      const auto want = from.state(parameter.fqn), have = rank.state(parameter.fqn);
      ASSERT_EQ(have.size(), want.size()) << parameter.fqn;
      if (want.empty()) continue;
      EXPECT_EQ(have.at("step"), want.at("step")) << parameter.fqn;
      EXPECT_EQ(have.at("step").toInt(), chosen(parameter.fqn) ? 3 : 1);
    }
    EXPECT_TRUE(torch::equal(rank.buffers[1].tensor, torch::tensor(int64_t{42})));
  });
}

TEST_P(CheckpointPartial, ARenameMapFindsModelAndOptimizerState) {
  save_model({{"encoder.weight", {9, 4}}, {"encoder.bias", {9}}});
  const FleetRank saved = unsharded({{"encoder.weight", {9, 4}}, {"encoder.bias", {9}}});
  ranks([&](comm::Communicator& communicator) {
    const std::vector<ParameterSpec> model = {{"net.w", {9, 4}}, {"net.b", {9}}};
    FleetRank rank = rank_of(communicator, kAdam, 3, model);
    EXPECT_THAT(refusal(rank, communicator, path_),
                AllOf(HasSubstr("'model.net.w' [9, 4]: missing"),
                      HasSubstr("'model.encoder.weight' [9, 4]: in the checkpoint, but not here")));
    const std::map<std::string, std::string> names = {{"net.w", "encoder.weight"},
                                                      {"net.b", "encoder.bias"}};
    load(rank, communicator, path_, {}, LoadOptions().rename([&](const std::string& name) {
      const auto found = names.find(name);
      return found == names.end() ? name : found->second;
    }));
    for (const auto& [here, there] : names) {
      const ShardedParameter& parameter = rank.parameter(here);
      expect_rows(parameter.leaf, saved.parameter(there).leaf, parameter);
      expect_rows(rank.state(here).at("exp_avg").toTensor(),
                  saved.state(there).at("exp_avg").toTensor(), parameter);
      EXPECT_EQ(rank.state(here).at("step").toInt(), 3);
    }
  });
}

// BL-42: never by overlap alone, only where the program says so.
TEST_P(CheckpointPartial, BL42_AWidenedVocabularyKeepsOldRowsAndTheNewOnesOfTheProgram) {
  for (const auto& [stored_rows, rows] : {std::pair<int64_t, int64_t>{11, 17}, {17, 11}, {1, 9}}) {
    for (const MakeOptimizer& make : {kAdam, kAdagrad}) {
      TempDirectory temp;
      const std::vector<ParameterSpec> old = {{"table", {stored_rows, 3}}, {"head", {4, 3}}};
      const std::vector<ParameterSpec> now = {{"table", {rows, 3}}, {"head", {4, 3}}};
      ranks(
          [&](comm::Communicator& communicator) {
            FleetRank rank = rank_of(communicator, make, 0, old);
            rank.train(0, 3);
            save(rank, communicator, temp / "c");
          },
          2);
      const FleetRank saved = unsharded(old, make);
      const int64_t common = std::min(stored_rows, rows);
      ranks([&](comm::Communicator& communicator) {
        FleetRank rank = rank_of(communicator, make, 3, now);
        const FleetRank fresh(now, 0, 1, make, even_split, 3);
        EXPECT_THAT(refusal(rank, communicator, temp / "c"), HasSubstr("shape"));
        std::vector<std::string> asked;
        const LoadReport report = load(
            rank, communicator, temp / "c", {}, LoadOptions().resize_rows([&](const RowChange& c) {
              EXPECT_EQ(c.stored_shape, (std::vector<int64_t>{stored_rows, 3}));
              EXPECT_EQ(c.shape, (std::vector<int64_t>{rows, 3}));
              return c.name == "table";
            }));
        const auto want = [&](const Tensor& stored, const Tensor& beyond) {
          return torch::cat({stored.detach().narrow(0, 0, common),
                             beyond.detach().narrow(0, common, rows - common)});
        };
        const ShardedParameter& table = rank.parameter("table");
        expect_rows(table.leaf,
                    want(saved.parameter("table").leaf, fresh.parameter("table").leaf), table);
        std::vector<std::string> keys = {"model.table"};
        for (const auto& [key, value] : saved.state("table")) {
          if (!value.isTensor()) continue;
          keys.push_back("optim.state.table." + key);
          // Adagrad has its state before the first step.
          const auto here = fresh.state("table");
          const Tensor beyond = here.contains(key) ? here.at(key).toTensor()
                                                   : torch::zeros({rows, 3});
          expect_rows(rank.state("table").at(key).toTensor(), want(value.toTensor(), beyond), table);
        }
        EXPECT_THAT(report.reshaped, testing::UnorderedElementsAreArray(keys));
        expect_rows(rank.parameter("head").leaf, saved.parameter("head").leaf,
                    rank.parameter("head"));
        EXPECT_NO_THROW(rank.train(3, 2));
      });
    }
  }
}

TEST_P(CheckpointPartial, OtherDimensionsAreNeverResized) {
  save_model({{"table", {6, 4}}});
  ranks([&](comm::Communicator& communicator) {
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{6, 5}, {6}, {6, 4, 1}, {24}}) {
      FleetRank rank = rank_of(communicator, kAdam, 3, {{"table", shape}});
      EXPECT_THAT(refusal(rank, communicator, path_, {},
                          LoadOptions().resize_rows([](const RowChange&) { return true; })),
                  HasSubstr("'model.table': shape [6, 4] in the checkpoint"));
    }
  });
}

TEST_P(CheckpointPartial, StrictnessIsForEachPartAndEverythingIsReported) {
  save_model({{"both", {5, 2}}, {"gone", {3}}});
  ranks([&](comm::Communicator& communicator) {
    const std::vector<ParameterSpec> model = {{"both", {5, 2}}, {"added", {4}}};
    FleetRank rank = rank_of(communicator, kAdam, 3, model);
    const Tensor added = rank.parameter("added").leaf.detach().clone();
    const Strictness lenient{.missing = true, .unexpected = true};
    // Lenient in one part is not lenient in another.
    EXPECT_THAT(refusal(rank, communicator, path_, {},
                        LoadOptions().strictness(StatePart::kModel, lenient)),
                AllOf(HasSubstr("optimizer state of 'gone'"), Not(HasSubstr("'model.gone'"))));
    EXPECT_THAT(refusal(rank, communicator, path_, {},
                        LoadOptions().strictness(StatePart::kModel, {.missing = true})),
                AllOf(HasSubstr("'model.gone' [3]: in the checkpoint, but not here"),
                      Not(HasSubstr("'model.added'"))));
    const LoadReport report = load(rank, communicator, path_, {},
                                   LoadOptions()
                                       .strictness(StatePart::kModel, lenient)
                                       .strictness(StatePart::kOptimizer, lenient));
    EXPECT_THAT(report.missing, ElementsAre("model.added"));
    EXPECT_THAT(report.unexpected,
                UnorderedElementsAre("model.gone", "optim.state.gone"));
    EXPECT_THAT(report.reshaped, IsEmpty());
    EXPECT_TRUE(torch::equal(rank.parameter("added").leaf, added));
    EXPECT_EQ(rank.state("both").at("step").toInt(), 3);
    EXPECT_NO_THROW(rank.train(3, 1));
  });
}

TEST_P(CheckpointPartial, ItemsMayBeMissingWhereAllowed) {
  save_model({{"w", {5, 2}}});
  ranks([&](comm::Communicator& communicator) {
    FleetRank rank = rank_of(communicator, kAdam, 3, {{"w", {5, 2}}});
    LiveState live = rank.live(communicator);
    int64_t position = 7;
    live.items["position"] = {[&] { return ItemValue(position); },
                              [&](const ItemValue& value) { position = std::get<int64_t>(value); }};
    const Tensor tensor = torch::ones({2});
    live.tensors = {{"mine", ItemTensor::replicated(tensor)}};
    EXPECT_THAT(refused(live), AllOf(HasSubstr("item 'position': missing"),
                                     HasSubstr("'item.mine': missing")));
    const LoadReport report =
        load_state(files(), path_, live, {},
                   LoadOptions().strictness(StatePart::kItems, {.missing = true}));
    EXPECT_EQ(position, 7);
    EXPECT_THAT(report.missing, UnorderedElementsAre("item.position", "item.mine"));
  });
}

TEST_P(CheckpointPartial, ConversionsAreListed) {
  save_model({{"w", {5, 2}}});
  ranks([&](comm::Communicator& communicator) {
    FleetRank rank = rank_of(communicator, nullptr, 3, {{"w", {5, 2}, torch::kDouble}});
    LiveState live = rank.live(communicator);
    const CkptSpec spec = CkptSpec().with_optimizer(false).dtype_policy(DtypePolicy::kConvert);
    EXPECT_THAT(refused(live, path_, spec), HasSubstr("dtype_policy"));
    const CkptSpec exact = CkptSpec().with_optimizer(false);
    EXPECT_THAT(refused(live, path_, exact), HasSubstr("dtype F32 in the checkpoint, F64 here"));
  });
}

}  // namespace
}  // namespace tessera::checkpoint
