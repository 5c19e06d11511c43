// Save at N simulated ranks, load at M: every number comes back, and training goes on as if nothing
// had happened.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/verify.h"
#include "tessera/error.h"
#include "unit/checkpoint_fleet.h"
#include "unit/io_temp_directory.h"

namespace tessera::checkpoint {
namespace {

using io::TempDirectory;
using testing::HasSubstr;

struct OptimizerCase {
  const char* name;
  MakeOptimizer saved;
  MakeOptimizer fresh;  // with other numbers, which the checkpoint must replace (BL-33)
};

std::vector<OptimizerCase> optimizers() {
  using namespace torch::optim;
  return {
      {"AdamAmsgrad",
       make_optimizer<Adam>(AdamOptions(1e-2).betas({0.8, 0.95}).weight_decay(0.1).amsgrad(true)),
       make_optimizer<Adam>(AdamOptions(1e-3).amsgrad(true))},
      {"AdamW", make_optimizer<AdamW>(AdamWOptions(1e-2).betas({0.7, 0.9})),
       make_optimizer<AdamW>(AdamWOptions(5e-4))},
      {"Adagrad",
       make_optimizer<Adagrad>(AdagradOptions(1e-2).initial_accumulator_value(0.5).lr_decay(0.01)),
       make_optimizer<Adagrad>(AdagradOptions(1.0))},
      {"RMSprop", make_optimizer<RMSprop>(RMSpropOptions(1e-3).centered(true).momentum(0.5)),
       make_optimizer<RMSprop>(RMSpropOptions(1e-1).centered(true))},
      {"SGD", make_optimizer<SGD>(SGDOptions(0.05).momentum(0.9).weight_decay(0.01)),
       make_optimizer<SGD>(SGDOptions(0.5))},
  };
}

void save_fleet(const std::string& path, int world, const CkptSpec& spec, const MakeOptimizer& make,
                int64_t steps, const Split& split = even_split) {
  expect_no_errors(test::run_ranks(world, [&](comm::Communicator& communicator) {
    FleetRank rank(awkward_model(), communicator.rank(), world, make, split);
    rank.train(0, steps);
    save_state(io::real_file_system(), rank.live(communicator), spec, {path, false}, steps,
               SaveOptions().sync(false));
  }));
}

void load_and_continue(const std::string& path, int world, const CkptSpec& spec,
                       const OptimizerCase& test, int64_t steps, const Split& split = even_split) {
  FleetRank reference(awkward_model(), 0, 1, test.saved);
  reference.train(0, steps);
  FleetRank later(awkward_model(), 0, 1, test.saved);
  later.train(0, steps + 3);
  expect_no_errors(test::run_ranks(world, [&](comm::Communicator& communicator) {
    FleetRank rank(awkward_model(), communicator.rank(), world, test.fresh, split, /*offset=*/3);
    const LoadReport report =
        load_state(io::real_file_system(), path, rank.live(communicator), spec, {});
    EXPECT_EQ(report.step, steps);
    expect_same_state(rank, reference);
    rank.train(steps, 3);
    expect_same_state(rank, later, 1e-6);
  }));
}

class CheckpointRoundTrip : public testing::TestWithParam<std::tuple<size_t, StateDictKind>> {};

// BL-07, BL-08, BL-12, BL-17, BL-18, BL-19, BL-20, BL-21, BL-22, BL-25, BL-27, BL-30, BL-33, BL-37
TEST_P(CheckpointRoundTrip, AnyWorldToAnyWorld) {
  const auto [index, kind] = GetParam();
  const OptimizerCase test = optimizers()[index];
  const CkptSpec spec = CkptSpec().kind(kind);
  for (int saved : {1, 2, 3, 5}) {
    TempDirectory temp;
    save_fleet(temp / "c", saved, spec, test.saved, 4, saved == 3 ? skewed_split : even_split);
    EXPECT_THAT(verify_checkpoint(io::real_file_system(), temp / "c").problems, testing::IsEmpty());
    for (int loaded : {1, 2, 3, 4, 7}) {
      SCOPED_TRACE(std::to_string(saved) + " to " + std::to_string(loaded));
      load_and_continue(temp / "c", loaded, spec, test, 4, loaded == 2 ? skewed_split : even_split);
    }
  }
}

std::string case_name(const testing::TestParamInfo<std::tuple<size_t, StateDictKind>>& info) {
  const bool full = std::get<1>(info.param) == StateDictKind::kFull;
  return std::string(optimizers()[std::get<0>(info.param)].name) + (full ? "Full" : "Sharded");
}

INSTANTIATE_TEST_SUITE_P(All, CheckpointRoundTrip,
                         testing::Combine(testing::Range(size_t{0}, size_t{5}),
                                          testing::Values(StateDictKind::kSharded,
                                                          StateDictKind::kFull)),
                         case_name);

TEST(CheckpointKinds, EachKindLoadsWhatItCan) {  // BL-15, BL-16, B21
  const OptimizerCase test = optimizers()[2];
  for (const StateDictKind saved : {StateDictKind::kSharded, StateDictKind::kFull}) {
    for (const StateDictKind asked : {StateDictKind::kSharded, StateDictKind::kFull}) {
      TempDirectory temp;
      save_fleet(temp / "c", 3, CkptSpec().kind(saved), test.saved, 2);
      load_and_continue(temp / "c", 2, CkptSpec().kind(asked), test, 2);
    }
  }
}

TEST(CheckpointKinds, LocalLoadsOnlyAtItsOwnLayout) {  // BL-13, BL-14, BL-16
  const OptimizerCase test = optimizers()[0];
  const CkptSpec local = CkptSpec().kind(StateDictKind::kLocal);
  TempDirectory temp;
  save_fleet(temp / "c", 3, local, test.saved, 2);
  EXPECT_THAT(verify_checkpoint(io::real_file_system(), temp / "c").problems, testing::IsEmpty());
  load_and_continue(temp / "c", 3, local, test, 2);
  load_and_continue(temp / "c", 3, CkptSpec(), test, 2);  // the same numbers under another name
  const auto refuse = [&](int world, const CkptSpec& spec, const Split& split,
                          const std::string& path) {
    std::string message;
    const auto errors = test::run_ranks(world, [&](comm::Communicator& communicator) {
      FleetRank rank(awkward_model(), communicator.rank(), world, test.fresh, split, 3);
      FleetRank untouched(awkward_model(), communicator.rank(), world, test.fresh, split, 3);
      EXPECT_THROW(
          {
            try {
              load_state(io::real_file_system(), path, rank.live(communicator), spec, {});
            } catch (const LayoutError& error) {
              if (communicator.rank() == 0) message = error.what();
              throw;
            }
          },
          LayoutError);
      for (size_t i = 0; i < rank.parameters.size(); ++i)
        EXPECT_TRUE(torch::equal(rank.parameters[i].leaf, untouched.parameters[i].leaf));
    });
    expect_no_errors(errors);
    return message;
  };
  EXPECT_THAT(refuse(2, local, even_split, temp / "c"),
              testing::AllOf(HasSubstr("saved by 3 ranks"), HasSubstr("loaded by 2"),
                             HasSubstr("sharded")));
  EXPECT_THAT(refuse(3, local, skewed_split, temp / "c"), HasSubstr("layout"));
  save_fleet(temp / "s", 2, CkptSpec(), test.saved, 2);
  EXPECT_THAT(refuse(2, local, even_split, temp / "s"), HasSubstr("kind sharded"));
}

// BL-44: exchanges do not depend on the number of tensors, and nothing is quadratic in it.
TEST(CheckpointScale, ThousandsOfSmallTensors) {
  std::vector<int> exchanges;
  for (const int count : {10, 3000}) {
    TempDirectory temp;
    std::vector<ParameterSpec> model;
    for (int i = 0; i < count; ++i) model.push_back({c10::str("layer.", i, ".weight"), {8}});
    const MakeOptimizer make = make_optimizer<torch::optim::Adam>(torch::optim::AdamOptions());
    const auto start = std::chrono::steady_clock::now();
    std::vector<int> counts(3);
    expect_no_errors(test::run_ranks(3, [&](comm::Communicator& communicator) {
      FleetRank saved(model, communicator.rank(), 3, make);
      saved.buffers.clear();
      saved.train(0, 1);
      const auto path = temp / "c";
      save_state(io::real_file_system(), saved.live(communicator), {}, {path, false}, 1,
                 SaveOptions().sync(false));
      FleetRank loaded(model, communicator.rank(), 3, make, even_split, 3);
      loaded.buffers.clear();
      load_state(io::real_file_system(), path, loaded.live(communicator), {}, {});
      expect_same_state(loaded, saved);
      counts[static_cast<size_t>(communicator.rank())] =
          static_cast<test::ThreadCommunicator&>(communicator).exchanges();
    }));
    exchanges.push_back(counts[0]);
    // A quadratic step would take minutes; this takes about a second on an idle machine.
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  }
  EXPECT_EQ(exchanges[0], exchanges[1]);
}

}  // namespace
}  // namespace tessera::checkpoint
