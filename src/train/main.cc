// tessera-train: see options.h for flags and exit codes.
#include <cstdio>
#include <exception>

#include "options.h"
#include "run.h"

int main(int argc, char** argv) {
  using namespace tessera::train;
  try {
    const ParsedCommand command = parse_command(argc, argv);
    if (command.options) return run(*command.options);
    if (command.exit_code != kComplete) return refuse(command.text, command.exit_code);
    std::fputs(command.text.c_str(), stdout);
    return kComplete;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tessera-train: %s\n", error.what());
    return kFailed;
  }
}
