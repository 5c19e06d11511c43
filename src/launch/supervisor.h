// The whole run: attempts, restarts, the store of each attempt, and the exit code.
//
// Threads: the launcher's main thread.
// Errors: UsageError and IoError before the first rank starts, and where a restart cannot be made.
#pragma once

#include "launch/attempt.h"
#include "launch/environment.h"
#include "launch/options.h"
#include "launch/output.h"
#include "launch/signal_intake.h"
#include "launch/store_host.h"

namespace tessera::launch {

inline constexpr int kExitUsage = 2;
inline constexpr int kExitTimeLimit = 124;
inline constexpr int kExitLauncherFailed = 125;

class Supervisor {
 public:
  Supervisor(LaunchOptions options, EnvironmentBlock environment, StoreHostFactory store_factory,
             SignalIntake& signals, Output& output, Guard& guard);

  // Returns the exit code of the launcher.
  int run();
  // The last attempt ended so that what is left of the output is worth a moment only.
  bool hurried() const { return hurried_; }

 private:
  AttemptResult run_attempt(int number);
  void start_ranks(int number, int port, RankGroup& ranks);
  int exit_code(const AttemptResult& result) const;
  void report(const AttemptResult& result, const RankGroup& ranks);
  void choose_threads();

  LaunchOptions options_;
  EnvironmentBlock environment_;
  StoreHostFactory store_factory_;
  SignalIntake& signals_;
  Output& output_;
  Guard& guard_;
  std::string program_path_;
  std::string run_id_;
  std::optional<Clock::time_point> time_limit_;
  int failure_code_ = 0;
  bool hurried_ = false;
};

}  // namespace tessera::launch
