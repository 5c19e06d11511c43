// SIGINT and SIGTERM as a wish to stop after the current step.
//
// Threads: call `install` once, before training; `requested` from any thread. The flag is the one
// piece of process-wide state here, as signal handlers have no other place.
#pragma once

namespace tessera::train::stop_signal {

void install();
bool requested();

}  // namespace tessera::train::stop_signal
