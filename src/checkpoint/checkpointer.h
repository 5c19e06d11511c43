// Finding the checkpoint to resume from, over all ranks.
#pragma once

#include <optional>
#include <string>

#include "checkpoint/live_state.h"
#include "checkpoint/save.h"
#include "io/file_system.h"

namespace tessera::checkpoint {

// The target of a save into a run.
SaveTarget step_target(const std::string& root, int64_t step, RunState* run,
                       const CheckpointerOptions& options);

// After a save: removes what the options do not keep; a failure is only reported.
void expire_others(io::FileSystem& files, const std::string& root, const std::string& just_saved,
                   const CheckpointerOptions& options);

// Saves root/step-<step> and removes what the options do not keep. [collective]
std::string save_step(io::FileSystem& files, const std::string& root, const LiveState& state,
                      const CkptSpec& spec, int64_t step, const CheckpointerOptions& options,
                      RunState* run = nullptr);

// Loads the newest checkpoint that is whole; sets damaged ones aside. Nothing where there is none.
// CorruptionError where there are only damaged or incomplete ones: starting over must be the user's
// decision.
// [collective]
std::optional<LoadReport> load_newest(io::FileSystem& files, const std::string& root,
                                      const LiveState& state, const CkptSpec& spec,
                                      const LoadOptions& options);

}  // namespace tessera::checkpoint
