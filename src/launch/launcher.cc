#include "launch/launcher.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cstdio>

#include "launch/supervisor.h"

namespace tessera::launch {
namespace {

// The ranks are gone; only a reader of the console is waited for, until it reads or a signal comes.
void flush_console(Output& output, SignalIntake& signals) {
  while (output.pending()) {
    std::vector<pollfd> polls;
    polls.push_back({signals.fd(), POLLIN, 0});
    output.add_polls(polls);
    if (::poll(polls.data(), polls.size(), -1) < 0 && errno != EINTR) return;
    output.handle_polls(polls);
    while (const std::optional<int> signal = signals.next()) {
      if (is_stop_signal(*signal)) return;
    }
  }
}

int run(LaunchOptions options, const StoreHostFactory& store_factory) {
  SignalIntake signals;
  int code = kExitLauncherFailed;
  std::unique_ptr<Output> output;
  try {
    output = std::make_unique<Output>(
        OutputOptions{options.nproc, options.prefix, options.console, options.log_dir});
    code =
        Supervisor(std::move(options), EnvironmentBlock(environ), store_factory, signals, *output)
            .run();
  } catch (const std::exception& error) {
    if (dynamic_cast<const UsageError*>(&error) != nullptr) code = kExitUsage;
    const std::string line = fmt::format("tessera-run: {}", error.what());
    if (output == nullptr) {
      fmt::print(stderr, "{}\n", line);
    } else {
      output->say_plain(line);
    }
  }
  if (output != nullptr) flush_console(*output, signals);
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
