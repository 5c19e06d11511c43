// SIGINT, SIGTERM and SIGHUP as a wish to stop after the current step.
//
// Threads: call `install` once, before training; `requested` from any thread. The flag is the one
// piece of process-wide state here, as signal handlers have no other place.
#pragma once

namespace tessera::train::stop_signal {

void install();
// Lets a closed pipe (SIGPIPE) and a file at the size limit (SIGXFSZ) fail the write, which is
// reported, instead of ending the process.
void ignore_write_signals();
bool requested();

}  // namespace tessera::train::stop_signal
