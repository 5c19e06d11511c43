// The processes of one attempt: all ranks, and what they have started in turn.
//
// Every rank leads a process group, so that a signal reaches a whole shell pipeline. The launcher
// is the subreaper of its descendants: a process whose parent ends becomes a child of the launcher
// and can still be found, whatever group or session it moved to.
//
// Threads: the thread that created it. Never blocks.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "launch/child_process.h"
#include "launch/guard.h"
#include "launch/process_tree.h"

namespace tessera::launch {

using Clock = std::chrono::steady_clock;

struct Worker {
  int rank = 0;
  pid_t pid = -1;
  UniqueFd exec_status;
  int exec_error = 0;                // errno of an exec that failed
  std::optional<ExitStatus> status;  // set when it has ended
  Clock::time_point ended_at;
  int stop_signal = 0;  // the last signal by which the launcher asked it to end
  bool group_gone = false;
};

class RankGroup {
 public:
  // `guard` learns of every group that starts and ends; none in tests of this class.
  explicit RankGroup(Guard* guard = nullptr);
  // Kills what still runs: a failure in the middle of a start leaves nothing behind.
  ~RankGroup();
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  void add(int rank, SpawnedProcess process);

  // Ranks that have ended since the last call, in the order in which they ended. Also collects
  // adopted processes.
  std::vector<int> reap();

  // To the process groups; `stops` marks it as a request to end.
  void signal_groups(int signal, bool stops);
  // To the ranks' own processes only.
  void signal_leaders(int signal) const;
  // What descends from the launcher; `strays` are those outside the ranks' groups.
  std::vector<ProcessInfo> descendants() const;
  std::vector<ProcessInfo> strays() const;

  bool all_ended() const;
  bool groups_gone();

  const std::vector<Worker>& workers() const { return workers_; }
  const Worker& worker(int rank) const { return workers_[static_cast<size_t>(rank)]; }

 private:
  bool record(pid_t pid, int wait_status, std::vector<int>& ended);
  std::vector<pid_t> ended_in_order();
  void watch(Worker& worker);

  std::vector<Worker> workers_;
  std::vector<UniqueFd> pidfds_;
  UniqueFd epoll_;
  Guard* guard_;
};

}  // namespace tessera::launch
