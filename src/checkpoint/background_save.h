// The thread that writes checkpoints while training goes on.
//
// The ranks meet in the temporary directory: each writes `.report-<rank>` when its files are done,
// rank 0 publishes when all have reported, or leaves `.failed` with the reason. So a save needs no
// communicator after `start`, and a rank that dies is found by the deadline.
// Threads: one object belongs to the thread that trains; it has one thread of its own, which waits
// between saves. One save at a time: `start` waits for the one before.
#pragma once

#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "checkpoint/save_job.h"
#include "checkpoint/staging.h"
#include "tessera/async_save.h"

namespace tessera::checkpoint {

struct BackgroundSave {
  SaveJob job;
  SaveMeter meter;
  std::vector<PendingCopy> pending;
  uint64_t total_bytes = 0;
  std::atomic<uint64_t> staged_bytes{0};
  std::string staging_outcome;  // see agree.h
  CheckpointerOptions options;
  std::chrono::milliseconds timeout{0};
  std::promise<void> staged_promise;
  std::promise<std::string> committed_promise;
  std::shared_future<void> staged = staged_promise.get_future().share();
  std::shared_future<std::string> committed = committed_promise.get_future().share();
};

class BackgroundSaver {
 public:
  explicit BackgroundSaver(io::FileSystem& files) : files_(files) {}
  // Waits for the running save; gives it up where an exception is on its way.
  ~BackgroundSaver();
  BackgroundSaver(const BackgroundSaver&) = delete;
  BackgroundSaver& operator=(const BackgroundSaver&) = delete;

  // Copies what may change at once, and leaves the rest to the thread. [collective]
  std::shared_ptr<BackgroundSave> start(const std::string& root, const LiveState& state,
                                        const CkptSpec& spec, int64_t step,
                                        const CheckpointerOptions& options,
                                        RunState* run = nullptr);
  // Waits for the running save; throws on all ranks what it failed with, once. [collective]
  void settle(comm::Communicator& communicator);

  const std::shared_ptr<StagingGate>& gate() const { return gate_; }
  size_t staging_bytes() const { return area_.size(); }
  // Runs on the thread before it copies tensors: for tests.
  void before_staging(std::function<void()> hook) { before_staging_ = std::move(hook); }

 private:
  // Waits for the running save and takes it out; the result throws what it failed with.
  std::function<void()> take_unsettled(std::shared_ptr<BackgroundSave>& earlier);
  void clean_up(const std::shared_ptr<BackgroundSave>& earlier);
  void hand_over(std::shared_ptr<BackgroundSave> save);
  void wait_until_idle();
  void serve();
  void run(BackgroundSave& save);
  void copy(BackgroundSave& save);

  io::FileSystem& files_;
  StagingArea area_;
  std::shared_ptr<StagingGate> gate_ = std::make_shared<StagingGate>();
  std::function<void()> before_staging_;
  // The last save whose outcome nobody was told, and the directory that a failed one has left.
  std::shared_ptr<BackgroundSave> unsettled_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<BackgroundSave> running_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace tessera::checkpoint
