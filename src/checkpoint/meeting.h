// How ranks that share a directory, but no communicator, come to one outcome of a save.
//
// Threads: one per rank. Cost: one small file a rank; waiting looks every few milliseconds.
// Errors: TimeoutError naming the ranks that did not report; else what the save failed with, of the
// same kind on every rank.
#pragma once

#include <string>

#include "checkpoint/background_save.h"

namespace tessera::checkpoint {

// This rank's part has gone as `outcome` says (see agree.h). Returns the published directory's name.
std::string meet_and_publish(io::FileSystem& files, BackgroundSave& save,
                             const std::string& outcome);

// Waits for a file that rank 0 creates for all; throws where rank 0 reports without having done so.
void wait_for_shared_file(io::FileSystem& files, const BackgroundSave& save,
                          const std::string& name);

}  // namespace tessera::checkpoint
