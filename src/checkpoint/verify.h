// Checks a checkpoint on disk against its manifest, without any model and in one process.
//
// Threads: reentrant. Cost: reads every byte once, in pieces of 1 MiB.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/file_system.h"

namespace tessera::checkpoint {

struct VerifyReport {
  std::vector<std::string>
      problems;  // each names file, and tensor and byte range where there is one
  size_t files = 0;
  size_t tensors = 0;
  uint64_t blocks = 0;
  uint64_t bytes = 0;
};

// Manifest, sidecar, sizes, headers, the hash of every block, integers against their F32 copies,
// missing and stray files. Only a directory that cannot be read at all throws (IoError).
VerifyReport verify_checkpoint(io::FileSystem& files, const std::string& directory);

}  // namespace tessera::checkpoint
