// Counters, buffers, generators, schedulers, items, dtypes and mismatches (BL-..: faults of other
// checkpointers), at 1, 2 and 3 simulated ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/optim/schedulers/step_lr.h>

#include "unit/checkpoint_cases.h"

namespace tessera::checkpoint {
namespace {

class CheckpointValues : public CheckpointCases {};
INSTANTIATE_TEST_SUITE_P(Worlds, CheckpointValues, testing::Values(1, 2, 3));

TEST_P(CheckpointValues, BL04_BL05_CountersKeepTypeAndValue) {
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

TEST_P(CheckpointValues, BL09_NoOptimizerStateIsRefusedOrAskedFor) {
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

TEST_P(CheckpointValues, BL03_ADifferentSpecIsNamed) {
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

TEST_P(CheckpointValues, BL28_TiedParametersAreStoredOnce) {
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

TEST_P(CheckpointValues, BL42_AllMismatchesAtOnceAndNothingChanged) {
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

TEST_P(CheckpointValues, BL39_ConversionOnlyWhenAskedForAndReported) {
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

TEST_P(CheckpointValues, BL36_BL38_BL40_BuffersOfEveryFormAndType) {
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

TEST_P(CheckpointValues, BL66_GeneratorsAreEachRanksOwn) {
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

TEST_P(CheckpointValues, BuffersThatDifferAreKeptPerRankOrTakenFromRank0) {
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

TEST_P(CheckpointValues, BL31_SchedulersAndItems) {
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

TEST_P(CheckpointValues, PartsMayBeLeftOutAtLoadButNotAsked) {
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
