#include "launch/attempt.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <csignal>

namespace tessera::launch {
namespace {

// How often processes are looked for that the launcher is not told about when they end.
constexpr std::chrono::milliseconds kLookInterval{20};

}  // namespace

AttemptResult Attempt::run() {
  while (phase_ != Phase::kDone) {
    wait_for_events();
    take_signals();
    for (const int rank : ranks_.reap()) note_end(rank);
    advance(Clock::now());
  }
  output_.close_ranks();
  result_.hurried = kill_now_ || result_.ending == Ending::kTimeLimit;
  return result_;
}

void Attempt::wait_for_events() {
  std::vector<pollfd> polls;
  polls.push_back({signals_.fd(), POLLIN, 0});
  output_.add_polls(polls);
  const int count = ::poll(polls.data(), polls.size(), poll_timeout(Clock::now()));
  if (count < 0 && errno != EINTR && errno != EAGAIN) throw_errno("cannot wait for the ranks");
  if (count > 0) output_.handle_polls(polls);
}

int Attempt::poll_timeout(Clock::time_point now) const {
  if (phase_ == Phase::kRunning && !time_limit_) return -1;
  const Clock::time_point until = phase_ == Phase::kRunning ? *time_limit_ : deadline_;
  auto wait = std::chrono::ceil<std::chrono::milliseconds>(until - now);
  const bool looks = phase_ == Phase::kKilling || phase_ == Phase::kSettling ||
                     (phase_ == Phase::kStopping && ranks_.all_ended());
  if (looks) wait = kLookInterval;
  constexpr std::chrono::milliseconds kLongest{std::chrono::hours(1)};
  return static_cast<int>(std::clamp(wait, std::chrono::milliseconds(0), kLongest).count());
}

void Attempt::take_signals() {
  while (const std::optional<int> signal = signals_.next()) {
    if (is_stop_signal(*signal)) {
      take_stop_signal(*signal);
    } else if (*signal == SIGTSTP) {
      suspend();
    } else if (*signal != SIGCHLD) {
      ranks_.signal_leaders(*signal);
    }
  }
}

void Attempt::take_stop_signal(int signal) {
  ++stop_signals_;
  const std::string name = signal_name(signal);
  if (stop_signals_ > 1) {
    if (!kill_now_) output_.say(fmt::format("{} again: killing the ranks", name));
    kill_now_ = true;
  } else if (phase_ == Phase::kRunning) {
    output_.say(
        fmt::format("{}: passed on to the ranks, which have {:.0f} s to end (once more "
                    "kills them)",
                    name, std::chrono::duration<double>(options_.grace).count()));
    begin_stopping(Ending::kRequested, signal);
  } else {
    output_.say(fmt::format("{}: the run is ending already (once more kills what is left)", name));
  }
}

// The ranks are in groups of their own, so the terminal's Ctrl-Z reaches the launcher only.
void Attempt::suspend() {
  ranks_.signal_groups(SIGTSTP, false);
  static_cast<void>(::raise(SIGSTOP));
  ranks_.signal_groups(SIGCONT, false);
}

void Attempt::note_end(int rank) {
  output_.rank_ended(rank);
  const Worker& worker = ranks_.worker(rank);
  if ((worker.exec_error != 0 || !worker.status->ok()) && !result_.first_failed) {
    result_.first_failed = rank;
  }
}

void Attempt::advance(Clock::time_point now) {
  switch (phase_) {
    case Phase::kRunning:
      return advance_running(now);
    case Phase::kStopping:
      return advance_stopping(now);
    case Phase::kKilling:
      return advance_killing(now);
    case Phase::kSettling:
      return advance_settling(now);
    case Phase::kDone:
      return;
  }
}

void Attempt::advance_running(Clock::time_point now) {
  if (result_.first_failed) {
    const Worker& worker = ranks_.worker(*result_.first_failed);
    if (worker.exec_error == 0 && !ranks_.all_ended()) {
      output_.say(fmt::format("rank {} (pid {}) {}; stopping the other ranks", worker.rank,
                              worker.pid, worker.status->describe()));
    }
    begin_stopping(Ending::kFailure, SIGTERM);
  } else if (ranks_.all_ended()) {
    begin_settling(now);
  } else if (time_limit_ && now >= *time_limit_) {
    output_.say("the time limit is over; stopping the ranks");
    begin_stopping(Ending::kTimeLimit, SIGTERM);
  }
}

void Attempt::begin_stopping(Ending ending, int signal) {
  result_.ending = ending;
  phase_ = Phase::kStopping;
  deadline_ = Clock::now() + options_.grace;
  ranks_.signal_groups(signal, true);
}

void Attempt::advance_stopping(Clock::time_point now) {
  if (all_gone()) return begin_settling(now);
  if (kill_now_ || now >= deadline_) return begin_killing(now);
  // Not before: a launcher among the ranks has stopped its own ranks by then, and once is enough.
  if (!strays_asked_ && ranks_.all_ended() && ranks_.groups_gone()) {
    strays_asked_ = true;
    signal_strays(SIGTERM);
  }
}

void Attempt::begin_killing(Clock::time_point now) {
  phase_ = Phase::kKilling;
  deadline_ = now + kKillWait;
  ranks_.signal_groups(SIGKILL, true);
  signal_strays(SIGKILL);
}

void Attempt::advance_killing(Clock::time_point now) {
  if (all_gone()) return begin_settling(now);
  if (now < deadline_) {
    ranks_.signal_groups(SIGKILL, true);
    signal_strays(SIGKILL);
    return;
  }
  name_stuck();
  begin_settling(now);
}

void Attempt::name_stuck() {
  for (const Worker& worker : ranks_.workers()) {
    if (worker.status) continue;
    result_.stuck.push_back(fmt::format("rank {} (pid {})", worker.rank, worker.pid));
  }
  for (const ProcessInfo& info : ranks_.descendants()) {
    const bool is_rank = std::any_of(ranks_.workers().begin(), ranks_.workers().end(),
                                     [&](const Worker& worker) { return worker.pid == info.pid; });
    if (!is_rank) result_.stuck.push_back(fmt::format("pid {} ({})", info.pid, info.name));
  }
}

void Attempt::begin_settling(Clock::time_point now) {
  phase_ = Phase::kSettling;
  deadline_ = now + kSettleWait;
}

void Attempt::advance_settling(Clock::time_point now) {
  const bool leftovers = result_.ending == Ending::kSuccess && !ranks_.groups_gone();
  if (now >= deadline_ && leftovers && !strays_asked_ && !kill_now_) {
    output_.say("the ranks have ended; stopping processes that they left behind");
    strays_asked_ = true;
    return begin_stopping(Ending::kSuccess, SIGTERM);
  }
  const bool waited = now >= deadline_ && (output_.drained() || !result_.stuck.empty() ||
                                           result_.ending == Ending::kTimeLimit);
  if (kill_now_ || waited || (output_.closed() && !leftovers)) phase_ = Phase::kDone;
}

bool Attempt::all_gone() {
  if (!ranks_.all_ended() || !ranks_.groups_gone()) return false;
  return result_.ending == Ending::kSuccess || ranks_.strays().empty();
}

void Attempt::signal_strays(int signal) {
  if (result_.ending == Ending::kSuccess) return;
  for (const ProcessInfo& info : ranks_.strays()) static_cast<void>(::kill(info.pid, signal));
}

}  // namespace tessera::launch
