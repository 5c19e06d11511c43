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
      for (const PlannedFile& file : job.plan())
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

std::function<void()> BackgroundSaver::take_unsettled(std::shared_ptr<BackgroundSave>& earlier) {
  wait_until_idle();
  earlier = std::move(unsettled_);
  unsettled_ = nullptr;
  return [earlier] {
    if (!earlier) return;
    try {
      earlier->committed.get();
    } catch (const SaveCancelled&) {
      // Whoever gave it up knows.
    }
  };
}

// All ranks have read why it failed.
void BackgroundSaver::clean_up(const std::shared_ptr<BackgroundSave>& earlier) {
  if (!earlier) return;
  try {
    earlier->committed.get();
  } catch (const std::exception&) {
    remove_temporary(files_, earlier->job);
  }
}

void BackgroundSaver::settle(comm::Communicator& communicator) {
  if (!unsettled_) return;
  std::shared_ptr<BackgroundSave> earlier;
  const auto tell = take_unsettled(earlier);
  try {
    agree(communicator, "an earlier background save", [&] {
      tell();
      return std::string();
    });
  } catch (...) {
    clean_up(earlier);
    throw;
  }
  clean_up(earlier);
}

std::shared_ptr<BackgroundSave> BackgroundSaver::start(const std::string& root,
                                                       const LiveState& state,
                                                       const CkptSpec& spec, int64_t step,
                                                       const CheckpointerOptions& options,
                                                       RunState* run) {
  if (options.save().through_rank0())
    throw UsageError(
        "save_async needs a directory that all ranks share; with SaveOptions::through_rank0 use save");
  std::shared_ptr<BackgroundSave> earlier;
  const auto tell = take_unsettled(earlier);
  auto save = std::make_shared<BackgroundSave>();
  try {
    const auto first = [&] {
      tell();
      if (!thread_.joinable()) thread_ = start_quiet_thread([this] { serve(); });
    };
    prepare_job(files_, state, spec, step_target(root, step, run, options), step, options.save(),
                first, save->job);
  } catch (...) {
    clean_up(earlier);
    remove_temporary(files_, save->job);
    throw;
  }
  clean_up(earlier);
  save->options = options;
  save->timeout = state.communicator->timeout();
  // What fails from here on fails on this rank alone, and reaches the others with its report.
  save->staging_outcome = outcome_of([&] {
    Staged staged = stage(save->job, area_, gate_);
    save->pending = std::move(staged.pending);
    save->total_bytes = staged.total_bytes;
    save->staged_bytes = staged.copied_bytes;
    return std::string();
  });
  hand_over(save);
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
    const bool staged = succeeded(save.staging_outcome);
    published = meet_and_publish(files_, save,
                                 staged ? write_part(files_, save) : save.staging_outcome);
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
