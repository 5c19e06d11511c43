// What the tests of checkpoint cases share: saving and loading at 1, 2 and 3 simulated ranks.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/context.h"
#include "checkpoint/manifest.h"
#include "tessera/error.h"
#include "unit/checkpoint_fleet.h"
#include "unit/io_temp_directory.h"

namespace tessera::checkpoint {
using io::TempDirectory;
using testing::AllOf;
using testing::HasSubstr;
using namespace torch::optim;

inline const MakeOptimizer kAdam = make_optimizer<Adam>(AdamOptions(1e-2));
inline const MakeOptimizer kAdagrad =
    make_optimizer<Adagrad>(AdagradOptions(1e-2).initial_accumulator_value(0.5));

inline io::FileSystem& files() { return io::real_file_system(); }

inline void save(FleetRank& rank, comm::Communicator& communicator, const std::string& path,
                 const CkptSpec& spec = {}, int64_t step = 1) {
  save_state(files(), rank.live(communicator), spec, {path, false}, step,
             SaveOptions().sync(false));
}

inline LoadReport load(FleetRank& rank, comm::Communicator& communicator, const std::string& path,
                       const CkptSpec& spec = {}, const LoadOptions& options = {}) {
  return load_state(files(), path, rank.live(communicator), spec, options);
}

// The message of the LayoutError with which the load must end, on every rank the same text.
inline std::string refusal(FleetRank& rank, comm::Communicator& communicator,
                           const std::string& path, const CkptSpec& spec = {},
                           const LoadOptions& options = {}) {
  try {
    load(rank, communicator, path, spec, options);
  } catch (const LayoutError& error) {
    return error.what();
  }
  return "loaded";
}

inline std::string all_notes(const LoadReport& report) {
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
  // The message with which the load of `state` is refused.
  std::string refused(const LiveState& state, const std::string& path = "",
                      const CkptSpec& spec = {}) const {
    try {
      load_state(files(), path.empty() ? path_ : path, state, spec, {});
    } catch (const LayoutError& error) {
      return error.what();
    }
    return "loaded";
  }
};

}  // namespace tessera::checkpoint
