// What users put into a checkpoint besides a model and its optimizer.
#include "unit/checkpoint_cases.h"

namespace tessera::checkpoint {
namespace {

using Dict = ItemValue::Dict;
using List = ItemValue::List;

class CheckpointItems : public CheckpointCases {};
INSTANTIATE_TEST_SUITE_P(Worlds, CheckpointItems, testing::Values(1, 2, 3));

TEST_P(CheckpointItems, NestedValuesKeepEveryTypeAndEveryDouble) {
  const ItemValue value = Dict{
      {"sampler", Dict{{"epoch", int64_t{1} << 60}, {"shuffled", true}, {"text", "a.b/\"\n"}}},
      {"losses", List{0.1, -0.0, 1e-308, std::numeric_limits<double>::infinity(), int64_t{3}}},
      {"empty", List{}},
      {"none", Dict{}},
      {"deep", List{List{List{"x"}}}}};
  ranks([&](comm::Communicator& communicator) {
    FleetRank rank = rank_of(communicator, kAdam);
    LiveState live = rank.live(communicator);
    live.items["mine"] = {[&] { return value; }, [](const ItemValue&) {}};
    save_state(files(), live, {}, {path_, false}, 1, SaveOptions().sync(false));
    ItemValue loaded = Dict{};
    live.items["mine"] = {[] { return ItemValue(Dict{}); },
                          [&](const ItemValue& stored) { loaded = stored; }};
    load_state(files(), path_, live, {}, {});
    EXPECT_TRUE(loaded == value);
    const auto& losses = std::get<List>(std::get<Dict>(loaded).at("losses"));
    EXPECT_TRUE(std::signbit(std::get<double>(losses[1])));
    EXPECT_TRUE(std::holds_alternative<int64_t>(losses[4]));
    live.items["mine"].get = [] { return ItemValue(List{}); };
    EXPECT_THAT(refused(live), HasSubstr("item 'mine' is dict in the checkpoint, list here"));
  });
}

// BL-14: a plain tensor that differs between ranks is an error, or declared.
TEST_P(CheckpointItems, BL14_ATensorThatDiffersBetweenRanksMustBeDeclaredSo) {
  for (const StateDictKind kind : {StateDictKind::kSharded, StateDictKind::kFull}) {
    TempDirectory temp;
    ranks([&](comm::Communicator& communicator) {
      FleetRank rank = rank_of(communicator, kAdam);
      LiveState live = rank.live(communicator);
      const CkptSpec spec = CkptSpec().kind(kind);
      const Tensor mine = torch::full({3}, communicator.rank());
      live.tensors = {{"mine", ItemTensor::replicated(mine)}};
      if (communicator.world_size() > 1) {
        try {
          save_state(files(), live, spec, {temp / "c", false}, 1, {});
          ADD_FAILURE() << "saved";
        } catch (const LayoutError& error) {
          EXPECT_THAT(error.what(), HasSubstr("'item.mine' differs between ranks"));
        }
      }
      live.tensors = {{"mine", ItemTensor::per_rank(mine)}};
      save_state(files(), live, spec, {temp / "c", false}, 1, SaveOptions().sync(false));
      mine.fill_(99);
      load_state(files(), temp / "c", live, spec, {});
      EXPECT_TRUE(torch::equal(mine, torch::full({3}, communicator.rank())));
    });
  }
}

struct Tensors {
  explicit Tensors(FleetRank& fleet, int rank, double factor = 1)
      : ema(rows_of(torch::arange(53 * 4, torch::kDouble).reshape({53, 4}) * factor,
                    fleet.parameter("embed.weight"))
                .clone()),
        table(torch::arange(7, torch::kInt32) * static_cast<int>(factor)),
        counts(torch::full({2, 2}, 10.0 * rank * factor)) {}
  std::map<std::string, ItemTensor> items(ItemTensor per_rank) const {
    return {{"ema", ItemTensor::sharded_like("head.weight", ema)},
            {"table", ItemTensor::replicated(table)},
            {"counts", std::move(per_rank)}};
  }
  Tensor ema, table, counts;
};

// BL-24: state of each rank, as a data loader has, and another number of ranks.
TEST_P(CheckpointItems, BL24_TensorsOfEverySpreadLoadAtAnotherWorldSizeByTheirPolicy) {
  for (const StateDictKind kind : {StateDictKind::kSharded, StateDictKind::kFull}) {
    TempDirectory temp;
    const CkptSpec spec = CkptSpec().kind(kind);
    ranks(
        [&](comm::Communicator& communicator) {
          FleetRank rank = rank_of(communicator, kAdam);
          LiveState live = rank.live(communicator);
          const Tensors saved(rank, communicator.rank());
          live.tensors = saved.items(ItemTensor::per_rank(saved.counts));
          save_state(files(), live, spec, {temp / "c", false}, 1, SaveOptions().sync(false));
        },
        3);
    ranks([&](comm::Communicator& communicator) {
      FleetRank rank = rank_of(communicator, kAdam);
      LiveState live = rank.live(communicator);
      const bool other = communicator.world_size() != 3;
      const Tensors want(rank, communicator.rank());
      const auto load_with = [&](const std::function<ItemTensor(Tensor)>& policy) {
        const Tensors fresh(rank, communicator.rank(), 5);
        live.tensors = fresh.items(policy(fresh.counts));
        load_state(files(), temp / "c", live, spec, {});
        EXPECT_TRUE(torch::equal(fresh.ema, want.ema));
        EXPECT_TRUE(torch::equal(fresh.table, want.table));
        return fresh.counts;
      };
      const Tensor own = torch::full({2, 2}, 10.0 * communicator.rank());
      const Tensor first = load_with(
          [](Tensor t) { return ItemTensor::per_rank(std::move(t), OtherWorld::kTakeRank0); });
      EXPECT_TRUE(torch::equal(first, other ? torch::zeros({2, 2}) : own));
      const Tensor merged = load_with([](Tensor t) {
        return ItemTensor::per_rank(
            std::move(t), [](const std::vector<Tensor>& all) { return torch::stack(all).sum(0); });
      });
      EXPECT_TRUE(torch::equal(merged, other ? torch::full({2, 2}, 30.0) : own));
      if (!other) return;
      const Tensors fresh(rank, communicator.rank(), 5);
      live.tensors = fresh.items(ItemTensor::per_rank(fresh.counts));
      EXPECT_THAT(refused(live, temp / "c", spec), HasSubstr("'item.counts' was saved by 3 ranks"));
      EXPECT_TRUE(torch::equal(fresh.table, Tensors(rank, communicator.rank(), 5).table));
    });
  }
}

// BL-66, with a second generator in the place of a device's.
TEST_P(CheckpointItems, BL66_TheGeneratorOfTheDeviceComesBackToo) {
  ranks([&](comm::Communicator& communicator) {
    FleetRank rank = rank_of(communicator, kAdam);
    LiveState live = rank.live(communicator);
    save_state(files(), live, {}, {temp_ / "cpu", false}, 1, SaveOptions().sync(false));
    live.device_generator = at::detail::createCPUGenerator(77 + static_cast<uint64_t>(communicator.rank()));
    const auto draw = [&] { return torch::rand({3}, live.device_generator); };
    draw();
    save_state(files(), live, {}, {path_, false}, 1, SaveOptions().sync(false));
    const Tensor expected = draw();
    load_state(files(), path_, live, {}, {});
    EXPECT_TRUE(torch::equal(draw(), expected));
    // A run that moves from the CPU to a device.
    const LoadReport report = load_state(files(), temp_ / "cpu", live, {}, {});
    EXPECT_THAT(all_notes(report), HasSubstr("'rng.cuda' is not in the checkpoint"));
  });
}

class CountingSgd : public SGD {
 public:
  using SGD::SGD;
  torch::Tensor step(LossClosure closure = nullptr) override {
    ++steps;
    return SGD::step(std::move(closure));
  }
  int steps = 0;
};

TEST_P(CheckpointItems, BL10_ALoadTakesNoStepAndTouchesNoWeight) {
  const MakeOptimizer make = [](std::vector<Tensor> parameters) {
    return std::make_unique<CountingSgd>(std::move(parameters),
                                         SGDOptions(0.1).momentum(0.9).weight_decay(0.5));
  };
  ranks([&](comm::Communicator& communicator) {
    FleetRank saved = rank_of(communicator, make);
    saved.train(0, 2);
    save(saved, communicator, path_);
    FleetRank loaded = rank_of(communicator, make, 3);
    const FleetRank before = rank_of(communicator, make, 3);
    load(loaded, communicator, path_, CkptSpec().with_model(false));
    EXPECT_EQ(dynamic_cast<CountingSgd&>(*loaded.optimizer).steps, 0);
    for (size_t i = 0; i < before.parameters.size(); ++i)
      EXPECT_TRUE(torch::equal(loaded.parameters[i].leaf, before.parameters[i].leaf));
    EXPECT_FALSE(loaded.state("embed.weight").empty());
  });
}

// Two models and two optimizers in one state, as a generator and a discriminator.
TEST_P(CheckpointItems, SeveralModelsWithTheirOptimizersRoundTrip) {
  const auto both = [](FleetRank& a, FleetRank& b, comm::Communicator& communicator) {
    LiveState live = a.live(communicator);
    for (ShardedParameter parameter : b.parameters) {
      parameter.fqn.insert(0, "critic.");
      for (std::string& alias : parameter.aliases) alias.insert(0, "critic.");
      live.parameters.push_back(std::move(parameter));
    }
    for (const NamedBuffer& buffer : b.buffers)
      live.buffers.push_back({"critic." + buffer.fqn, buffer.tensor});
    live.more_optimizers["critic"] = b.optimizer.get();
    return live;
  };
  for (const StateDictKind kind : {StateDictKind::kSharded, StateDictKind::kFull}) {
    TempDirectory temp;
    const CkptSpec spec = CkptSpec().kind(kind);
    ranks(
        [&](comm::Communicator& communicator) {
          FleetRank a = rank_of(communicator, kAdam), b = rank_of(communicator, kAdagrad, 2);
          a.train(0, 3);
          b.train(0, 2);
          save_state(files(), both(a, b, communicator), spec, {temp / "c", false}, 1,
                     SaveOptions().sync(false));
        },
        2);
    ranks([&](comm::Communicator& communicator) {
      FleetRank a = rank_of(communicator, kAdam, 3), b = rank_of(communicator, kAdagrad, 4);
      load_state(files(), temp / "c", both(a, b, communicator), spec, {});
      FleetRank want_a(awkward_model(), 0, 1, kAdam), want_b(awkward_model(), 0, 1, kAdagrad, even_split, 2);
      want_a.train(0, 3);
      want_b.train(0, 2);
      a.train(3, 2);
      b.train(2, 2);
      want_a.train(3, 2);
      want_b.train(2, 2);
      expect_same_state(a, want_a);
      expect_same_state(b, want_b);
      // A state without the second optimizer leaves it out, and says so.
      LiveState one = both(a, b, communicator);
      one.more_optimizers.clear();
      const LoadReport report = load_state(files(), temp / "c", one, spec, {});
      EXPECT_THAT(all_notes(report), testing::Not(HasSubstr("critic.a.weight")));
    });
  }
}

}  // namespace
}  // namespace tessera::checkpoint
