#include "launch/launcher.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cstdio>

#include "launch/supervisor.h"

namespace tessera::launch {
namespace {

// The ranks are gone; only a reader of the console is waited for: until it reads or a signal comes,
// or, in a hurry, for a second without progress.
void flush_console(Output& output, SignalIntake& signals, bool hurried) {
  constexpr int kHurriedWaitMs = 1000;
  while (output.pending()) {
    std::vector<pollfd> polls;
    polls.push_back({signals.fd(), POLLIN, 0});
    output.add_polls(polls);
    const int count = ::poll(polls.data(), polls.size(), hurried ? kHurriedWaitMs : -1);
    if (count == 0 || (count < 0 && errno != EINTR)) return;
    if (count > 0) output.handle_polls(polls);
    while (const std::optional<int> signal = signals.next()) {
      if (is_stop_signal(*signal)) return;
    }
  }
}

int run(LaunchOptions options, const StoreHostFactory& store_factory) {
  SignalIntake signals;
  Guard guard;
  Output output(OutputOptions{options.nproc, options.prefix, options.console, options.log_dir});
  Supervisor supervisor(std::move(options), EnvironmentBlock(environ), store_factory, signals,
                        output, guard);
  int code = kExitLauncherFailed;
  try {
    code = supervisor.run();
  } catch (const std::exception& error) {
    if (dynamic_cast<const UsageError*>(&error) != nullptr) code = kExitUsage;
    output.say(error.what());
  }
  flush_console(output, signals, supervisor.hurried());
  return code;
}

}  // namespace

int launcher_main(int argc, const char* const* argv, const StoreHostFactory& store_factory) {
  try {
    ensure_standard_streams();
    LaunchOptions options = parse_options(argc, argv);
    if (options.help) {
      fmt::print("{}", usage_text());
      return 0;
    }
    if (options.version) {
      fmt::print("tessera-run {}\n", TESSERA_VERSION);
      return 0;
    }
    return run(std::move(options), store_factory);
  } catch (const UsageError& error) {
    fmt::print(stderr, "tessera-run: {}\n(tessera-run --help shows all options)\n", error.what());
    return kExitUsage;
  } catch (const std::exception& error) {
    fmt::print(stderr, "tessera-run: {}\n", error.what());
    return kExitLauncherFailed;
  }
}

}  // namespace tessera::launch
