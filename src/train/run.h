// The two ways tessera-train goes on after its flags were read. No torch in this header.
#pragma once

#include <string>

#include "options.h"

namespace tessera::train {

// Trains. Returns the exit code. [collective]
int run(const TrainOptions& options);

// Says once, on rank 0, why there is nothing to run. Returns the exit code.
int refuse(const std::string& message, int exit_code);

}  // namespace tessera::train
