// tessera-train: see options.h for flags and exit codes.
#include <cstdio>
#include <exception>

#include "options.h"
#include "run.h"
#include "stop_signal.h"

int main(int argc, char** argv) {
  using namespace tessera::train;
  try {
    stop_signal::ignore_write_signals();
    const ParsedCommand command = parse_command(argc, argv);
    if (command.options) return run(*command.options);
    if (command.exit_code != kComplete) return refuse(command.text, command.exit_code);
    if (std::fputs(command.text.c_str(), stdout) < 0 || std::fflush(stdout) != 0) {
      std::fputs("tessera-train: the help could not be written to standard output\n", stderr);
      return kFailed;
    }
    return kComplete;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tessera-train: %s\n", error.what());
    return kFailed;
  }
}
