// Whether what a run will write can be written, asked before its first step: a run of hours must
// not end in a message that its first second could have given.
//
// Threads: any. Cost: a few system calls; `require_checkpoint_dir` makes the folder, and both make
// and remove one small file.
// Errors: UsageError with the flag, the path and what to give instead.
#pragma once

#include <string>

namespace tessera::train {

// A folder for the checkpoints of a run, made where it is missing.
void require_checkpoint_dir(const std::string& path);

// A file of parameters, new or to be replaced; never the text `data`, nor what is no such file.
void require_final_target(const std::string& path, const std::string& data);

}  // namespace tessera::train
