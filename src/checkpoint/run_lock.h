// One job at a time saves into the directory of a run: two would expire each other's checkpoints.
//
// Threads: one. Cost: one small file, `.lock`, which stays; the lock itself ends with the process.
// Errors: UsageError where another job holds it (names host and process), IoError.
#pragma once

#include <string>

namespace tessera::checkpoint {

class RunLock {
 public:
  explicit RunLock(std::string root) : root_(std::move(root)) {}
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;
  // Takes the lock until this object goes. Nothing happens where it is held already, or where the
  // file system has no locks.
  void acquire();

 private:
  const std::string root_;
  int fd_ = -1;
  bool unsupported_ = false;
};

}  // namespace tessera::checkpoint
