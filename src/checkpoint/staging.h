// Copies of the tensors of a save, so that training can go on while they are written.
//
// Threads: `stage` on the thread that trains, `PendingCopy::run` on any other.
// Cost: one shard of memory, kept between saves; small tensors are copied by `stage`, large ones of
// parameters and optimizer later. Huge pages where the kernel gives them: copying into fresh small
// pages is 5 to 20 times slower.
#pragma once

#include <c10/core/Storage.h>

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "checkpoint/save_job.h"
#include "fsdp/write_guard.h"

namespace tessera::checkpoint {

// Memory that is kept and grows. Throws IoError where the system has none.
class StagingArea {
 public:
  StagingArea() = default;
  ~StagingArea();
  StagingArea(const StagingArea&) = delete;
  StagingArea& operator=(const StagingArea&) = delete;
  // At least `bytes`; what was in it is lost where it grows.
  std::byte* reserve(size_t bytes);
  size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Closed while tensors are being copied; who wants to write to one waits.
class StagingGate : public fsdp::WriteGuard {
 public:
  void close();
  void open();
  void before_write() override;
  // How many threads wait to write.
  int waiting() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable opened_;
  bool closed_ = false;
  int waiting_ = 0;
};

struct PendingCopy {
  c10::Storage keep;  // what `from` points into
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  size_t bytes = 0;
};

struct Staged {
  std::vector<PendingCopy> pending;
  uint64_t total_bytes = 0;  // of all planned tensors
  uint64_t copied_bytes = 0;
};

// Lets the job's entries point at memory in `area`, fills in the small ones, and returns what is left
// to copy; `gate` guards its tensors from then on. Entries that this rank does not write lose theirs.
Staged stage(SaveJob& job, StagingArea& area, const std::shared_ptr<StagingGate>& gate);

}  // namespace tessera::checkpoint
