// Writing a checkpoint where only rank 0 sees the directory: the other ranks send it their bytes.
//
// Threads: one. Cost: rank after rank, every byte is broadcast once in pieces of up to 1 MiB, so
// memory is bounded by one piece and one file header; slower than writing in parallel by about the
// number of ranks.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/save_job.h"
#include "comm/communicator.h"

namespace tessera::checkpoint {

// Every rank's report, as from `write_files`; throws on all ranks where one fails. [collective]
std::vector<std::string> write_through_rank0(io::FileSystem& files,
                                             comm::Communicator& communicator, const SaveJob& job);

}  // namespace tessera::checkpoint
