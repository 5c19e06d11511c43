// Runs the ranks of one attempt to their end: a loop over poll() with four phases.
//
//   running   all is well; ends with the first failure, a stop signal, the time limit, or success
//   stopping  the ranks were asked to end; ends when nothing is left or the grace time is over
//   killing   SIGKILL, repeated until nothing is left or the kill wait is over
//   settling  reading what is still in the pipes
//
// A process that the kernel does not let end (uninterruptible sleep) is named and left after
// kKillWait. After success only what is left in the ranks' process groups is ended; after anything
// else all that descends from them.
//
// Threads: the launcher's main thread. Cost: no work while nothing happens.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launch/options.h"
#include "launch/output.h"
#include "launch/rank_group.h"
#include "launch/signal_intake.h"

namespace tessera::launch {

enum class Ending {
  kSuccess,
  kFailure,    // a rank failed by itself
  kRequested,  // a stop signal came
  kTimeLimit,
};

struct AttemptResult {
  Ending ending = Ending::kSuccess;
  std::optional<int> first_failed;  // rank that ended first with something else than 0
  std::vector<std::string> stuck;   // processes that could not be ended
  bool hurried = false;             // nobody wants to wait for a slow reader of the output
};

class Attempt {
 public:
  static constexpr std::chrono::milliseconds kKillWait{std::chrono::seconds(10)};
  // How long a process that is left behind may keep an output pipe open.
  static constexpr std::chrono::milliseconds kSettleWait{std::chrono::seconds(2)};

  Attempt(const LaunchOptions& options, SignalIntake& signals, Output& output, RankGroup& ranks,
          std::optional<Clock::time_point> time_limit)
      : options_(options),
        signals_(signals),
        output_(output),
        ranks_(ranks),
        time_limit_(time_limit) {}

  AttemptResult run();

 private:
  enum class Phase { kRunning, kStopping, kKilling, kSettling, kDone };

  void wait_for_events();
  int poll_timeout(Clock::time_point now) const;
  void take_signals();
  void take_stop_signal(int signal);
  void note_end(int rank);
  void advance(Clock::time_point now);
  void advance_running(Clock::time_point now);
  void advance_stopping(Clock::time_point now);
  void advance_killing(Clock::time_point now);
  void advance_settling(Clock::time_point now);
  void begin_stopping(Ending ending, int signal);
  void begin_killing(Clock::time_point now);
  void begin_settling(Clock::time_point now);
  bool all_gone();
  void signal_strays(int signal);
  void name_stuck();
  void suspend();

  const LaunchOptions& options_;
  SignalIntake& signals_;
  Output& output_;
  RankGroup& ranks_;
  std::optional<Clock::time_point> time_limit_;

  Phase phase_ = Phase::kRunning;
  Clock::time_point deadline_;  // of the current phase
  AttemptResult result_;
  bool kill_now_ = false;
  int stop_signals_ = 0;
  bool strays_asked_ = false;
};

}  // namespace tessera::launch
