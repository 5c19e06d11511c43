// The load of one checkpoint over all ranks.
//
// Exchanges: 1 for the manifest (rank 0 reads it), 1 for what speaks against the load, 1 after
// reading, 1 after taking over. Nothing live changes before every rank has read and verified its
// part. Bytes: a rank reads what its own rows need. Memory: one copy of this rank's part.
#pragma once

#include <string>

#include "checkpoint/live_state.h"
#include "io/file_system.h"

namespace tessera::checkpoint {

// [collective]
LoadReport load_state(io::FileSystem& files, const std::string& path, const LiveState& state,
                      const CkptSpec& spec, const LoadOptions& options);

}  // namespace tessera::checkpoint
