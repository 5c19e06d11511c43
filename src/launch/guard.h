// A small process that ends the ranks' process groups when the launcher is killed.
//
// The parent-death signal reaches the ranks themselves only. This process, in a session of its own,
// notices the launcher's end by a pipe and kills what the ranks have started in their groups.
//
// Threads: create it before any other thread exists; then one thread.
// Cost: one forked process that sleeps in read(); four bytes on a pipe for each group.
#pragma once

#include <sys/types.h>

#include "launch/fd.h"

namespace tessera::launch {

class Guard {
 public:
  Guard();
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  pid_t pid() const { return pid_; }
  void watch_group(pid_t group) { send(group); }
  // Its number may belong to others from now on.
  void forget_group(pid_t group) { send(-group); }

 private:
  void send(pid_t message);

  UniqueFd pipe_;
  pid_t pid_ = -1;
};

}  // namespace tessera::launch
