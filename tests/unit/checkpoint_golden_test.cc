// Checkpoints that earlier releases wrote must stay readable: tests/data/golden_v1 was written by
// the first one. TESSERA_WRITE_GOLDEN=<new directory> writes a set of the current version instead.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "checkpoint/verify.h"
#include "unit/checkpoint_fleet.h"

namespace tessera::checkpoint {
namespace {

const std::map<std::string, StateDictKind> kKinds = {{"sharded", StateDictKind::kSharded},
                                                     {"full", StateDictKind::kFull},
                                                     {"local", StateDictKind::kLocal}};

const MakeOptimizer kAdagrad = make_optimizer<torch::optim::Adagrad>(
    torch::optim::AdagradOptions(0.25).initial_accumulator_value(0.5));

// Values that no arithmetic of a later release can change.
FleetRank golden_rank(int rank) {
  FleetRank out(awkward_model(), rank, 2, kAdagrad);
  for (const auto& [leaf, state] : out.optimizer->state())
    static_cast<torch::optim::AdagradParamState&>(*state).step(3);
  return out;
}

LiveState golden_live(FleetRank& rank, comm::Communicator& communicator, ItemValue* loaded) {
  LiveState live = rank.live(communicator);
  live.items["epoch"] = {[] { return ItemValue(int64_t{4}); },
                         [loaded](const ItemValue& value) { *loaded = value; }};
  return live;
}

TEST(CheckpointGolden, Version1StaysReadable) {
  const char* write = std::getenv("TESSERA_WRITE_GOLDEN");
  const std::string root = write ? write : TESSERA_TEST_DATA "/golden_v1";
  for (const auto& [name, kind] : kKinds) {
    const std::string path = root + "/" + name;
    const CkptSpec spec = CkptSpec().kind(kind);
    if (write) {
      expect_no_errors(test::run_ranks(2, [&](comm::Communicator& communicator) {
        FleetRank rank = golden_rank(communicator.rank());
        ItemValue ignored;
        save_state(io::real_file_system(), golden_live(rank, communicator, &ignored), spec,
                   {path, false}, 60, {});
      }));
    }
    EXPECT_THAT(verify_checkpoint(io::real_file_system(), path).problems, testing::IsEmpty())
        << name;
    expect_no_errors(test::run_ranks(2, [&](comm::Communicator& communicator) {
      FleetRank loaded(awkward_model(), communicator.rank(), 2,
                       make_optimizer<torch::optim::Adagrad>(torch::optim::AdagradOptions(1)),
                       even_split, 3);
      ItemValue epoch;
      const LoadReport report = load_state(io::real_file_system(), path,
                                           golden_live(loaded, communicator, &epoch), spec, {});
      EXPECT_EQ(report.step, 60);
      EXPECT_EQ(std::get<int64_t>(epoch), 4);
      const FleetRank expected = golden_rank(communicator.rank());
      expect_same_state(loaded, expected);
      for (size_t i = 0; i < expected.buffers.size(); ++i)
        EXPECT_TRUE(torch::equal(loaded.buffers[i].tensor, expected.buffers[i].tensor))
            << expected.buffers[i].fqn;
      EXPECT_EQ(loaded.optimizer->param_groups()[0].options().get_lr(), 0.25);
      EXPECT_TRUE(torch::equal(loaded.generator.get_state(), expected.generator.get_state()));
    }));
  }
}

}  // namespace
}  // namespace tessera::checkpoint
