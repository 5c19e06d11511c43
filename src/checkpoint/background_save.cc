#include "checkpoint/background_save.h"

#include <c10/util/StringUtil.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <cstring>

#include "checkpoint/agree.h"
#include "checkpoint/checkpointer.h"
#include "checkpoint/meeting.h"
#include "tessera/error.h"
#include "util/log.h"

namespace tessera::checkpoint {

namespace {

// Progress is told after each piece.
constexpr size_t kCopyPiece = size_t{4} << 20;

// A thread that takes no signals: handlers belong to the threads of the program.
std::thread start_quiet_thread(std::function<void()> body) {
  sigset_t all, before;
  ::sigfillset(&all);
  const int error_number = ::pthread_sigmask(SIG_SETMASK, &all, &before);
  if (error_number != 0) throw IoError("cannot block signals for a background save", error_number);
  std::thread thread;
  try {
    thread = std::thread(std::move(body));
  } catch (const std::system_error& error) {
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw IoError(c10::str("cannot start the thread of a background save: ", error.what()));
  }
  ::pthread_setname_np(thread.native_handle(), "tessera-save");
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

// This rank's part of the save, as a message to rank 0.
std::string write_part(io::FileSystem& files, BackgroundSave& save) {
  return outcome_of([&] {
    const SaveJob& job = save.job;
    if (save.meter.cancelled) throw SaveCancelled("cancelled");
    if (job.leader()) {
      prepare_root(files, job);
      create_shared_files(files, job);
    } else {
      wait_until_visible(files, job, save.timeout);
      for (const PlannedFile& file : job.plan)
        if (file.shared) wait_for_shared_file(files, save, file.name);
    }
    return write_files(files, job, save.meter);
  });
}

}  // namespace

BackgroundSaver::~BackgroundSaver() {
  if (unsettled_ && std::uncaught_exceptions() > 0) {
    unsettled_->meter.abandoned = true;
    unsettled_->meter.cancelled = true;
  }
  wait_until_idle();
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  if (!unsettled_) return;
  // What a failed save has left stays for the other ranks to read.
  try {
    unsettled_->committed.get();
  } catch (const SaveCancelled&) {
  } catch (const std::exception& error) {
    log::error(c10::str("a background save failed: ", error.what()));
  }
}

void BackgroundSaver::settle(comm::Communicator& communicator) {
  if (!unsettled_) return;
  wait_until_idle();
  const std::shared_ptr<BackgroundSave> save = std::move(unsettled_);
  unsettled_ = nullptr;
  bool failed = false;
  const auto remove = [&] {
    if (failed) remove_temporary(files_, save->job);
  };
  try {
    agree(communicator, "an earlier background save", [&] {
      try {
        save->committed.get();
      } catch (const SaveCancelled&) {
        failed = true;
      } catch (...) {
        failed = true;
        throw;
      }
      return std::string();
    });
  } catch (...) {
    remove();
    throw;
  }
  remove();
}

std::shared_ptr<BackgroundSave> BackgroundSaver::start(const std::string& root,
                                                       const LiveState& state,
                                                       const CkptSpec& spec, int64_t step,
                                                       const CheckpointerOptions& options,
                                                       RunLock* lock) {
  settle(*state.communicator);
  auto save = std::make_shared<BackgroundSave>();
  SaveJob& job = save->job;
  job = prepare_job(state, spec, step_target(root, step, lock), step, options.save());
  try {
    const auto messages =
        agree(*state.communicator, "starting the save of " + job.target.path, [&] {
          if (!thread_.joinable()) thread_ = start_quiet_thread([this] { serve(); });
          const std::string claim = claim_directory(files_, job);
          Staged staged = stage(job, area_, gate_);
          save->pending = std::move(staged.pending);
          save->total_bytes = staged.total_bytes;
          save->staged_bytes = staged.copied_bytes;
          return claim;
        });
    take_claim(job, messages[0]);
    save->options = options;
    save->timeout = state.communicator->timeout();
    hand_over(save);
  } catch (...) {
    remove_temporary(files_, job);
    throw;
  }
  return save;
}

void BackgroundSaver::hand_over(std::shared_ptr<BackgroundSave> save) {
  gate_->close();
  unsettled_ = save;
  const std::lock_guard lock(mutex_);
  running_ = std::move(save);
  changed_.notify_all();
}

void BackgroundSaver::wait_until_idle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !running_; });
}

void BackgroundSaver::serve() {
  for (;;) {
    std::shared_ptr<BackgroundSave> save;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return running_ || stop_; });
      if (!running_) return;
      save = running_;
    }
    run(*save);
    const std::lock_guard lock(mutex_);
    running_ = nullptr;
    changed_.notify_all();
  }
}

void BackgroundSaver::copy(BackgroundSave& save) {
  for (const PendingCopy& pending : save.pending) {
    for (size_t done = 0; done < pending.bytes; done += kCopyPiece) {
      const size_t piece = std::min(kCopyPiece, pending.bytes - done);
      std::memcpy(pending.to + done, pending.from + done, piece);
      save.staged_bytes.fetch_add(piece, std::memory_order_relaxed);
    }
  }
  save.pending.clear();
  save.staged_promise.set_value();
  gate_->open();
}

void BackgroundSaver::run(BackgroundSave& save) {
  if (before_staging_) before_staging_();
  copy(save);
  std::string published;
  try {
    published = meet_and_publish(files_, save, write_part(files_, save));
  } catch (...) {
    save.committed_promise.set_exception(std::current_exception());
    return;
  }
  save.committed_promise.set_value(io::join_path(save.job.root, published));
  if (save.job.leader()) expire_others(files_, save.job.root, published, save.options);
}

}  // namespace tessera::checkpoint

namespace tessera {

AsyncSave::AsyncSave(std::shared_ptr<checkpoint::BackgroundSave> save) : save_(std::move(save)) {}

std::shared_future<void> AsyncSave::staged() const { return save_->staged; }
std::shared_future<std::string> AsyncSave::committed() const { return save_->committed; }

SaveProgress AsyncSave::progress() const {
  return {save_->total_bytes, save_->staged_bytes.load(), save_->meter.written.load()};
}

void AsyncSave::cancel() { save_->meter.cancelled = true; }

}  // namespace tessera
