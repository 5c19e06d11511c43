// The launcher as a function: what tessera-run's main calls, with a store to host.
//
// Call it first in main, before other threads exist. Returns the exit code.
#pragma once

#include "launch/store_host.h"

namespace tessera::launch {

int launcher_main(int argc, const char* const* argv, const StoreHostFactory& store_factory);

}  // namespace tessera::launch
