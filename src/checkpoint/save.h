// The save of one checkpoint over all ranks.
//
// Exchanges: 1 to compare and claim, 1 for boxes and hashes, 1 for the outcome; 1 more where ranks
// write the same file, or rank 0 for all. Each
// carries the outcome of the step before it, so a failure on any rank ends the save on all of them;
// rank 0 then removes the temporary directory. Bytes: each rank its own rows, once.
#pragma once

#include <chrono>
#include <string>

#include "checkpoint/live_state.h"
#include "io/file_system.h"

namespace tessera::checkpoint {

struct RunState;

// How long a directory that another rank made may take to appear here.
inline constexpr std::chrono::seconds kVisibilityLimit{30};

struct SaveTarget {
  std::string path;
  bool may_number = false;  // take path.1, path.2, ... where it exists; and write the LATEST hint
  RunState* run = nullptr;  // of the run that it belongs to, where there is one
  bool recycle = false;     // overwrite the files of an expired checkpoint where there is one
};

// Returns the directory that was published. [collective]
std::string save_state(io::FileSystem& files, const LiveState& state, const CkptSpec& spec,
                       const SaveTarget& target, int64_t step, const SaveOptions& options);

}  // namespace tessera::checkpoint
