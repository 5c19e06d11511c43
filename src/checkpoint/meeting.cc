#include "checkpoint/meeting.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <optional>
#include <thread>

#include "checkpoint/agree.h"
#include "checkpoint/box_writer.h"
#include "checkpoint/directory.h"
#include "tessera/error.h"
#include "util/log.h"

namespace tessera::checkpoint {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr uint64_t kMaxReportBytes = uint64_t{1} << 30;

std::string report_name(int rank) { return c10::str(".report-", rank); }

// Looks at `done` until it says yes; false where the deadline comes first.
template <typename Condition>
bool poll(const BackgroundSave& save, milliseconds limit, Condition done) {
  const auto deadline = Clock::now() + limit;
  milliseconds pause{1};
  while (!done()) {
    if (save.meter.abandoned) throw SaveCancelled("given up, as this process ends");
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(pause);
    // A save takes longer than a few looks: a shared file system is not to be asked all the time.
    pause = std::min(pause * 2, milliseconds(50));
  }
  return true;
}

// Appears with its content or not at all.
void leave_message(io::FileSystem& files, const std::string& directory, const std::string& name,
                   const std::string& content) {
  const std::string path = io::join_path(directory, name);
  write_new_file(files, path + ".part", content, /*sync=*/false);
  files.rename(path + ".part", path);
}

std::vector<std::string> collect_reports(io::FileSystem& files, const BackgroundSave& save,
                                         const std::string& own) {
  const SaveJob& job = save.job;
  std::vector<std::string> reports(static_cast<size_t>(job.world_size));
  reports[0] = own;
  int missing = job.world_size - 1;
  const auto path = [&](int rank) { return io::join_path(job.directory, report_name(rank)); };
  const auto look = [&] {
    if (save.meter.cancelled) throw SaveCancelled("cancelled on rank 0");
    for (int rank = 1; rank < job.world_size; ++rank) {
      std::string& report = reports[static_cast<size_t>(rank)];
      if (!report.empty() || !files.exists(path(rank))) continue;
      report = io::read_file(files, path(rank), kMaxReportBytes);
      if (report.empty()) throw CorruptionError(path(rank) + " is empty");
      files.remove_file(path(rank));
      --missing;
    }
    return missing == 0;
  };
  if (poll(save, save.timeout, look)) return reports;
  std::string names;
  for (int rank = 1; rank < job.world_size; ++rank)
    if (reports[static_cast<size_t>(rank)].empty())
      names += c10::str(names.empty() ? "" : ", ", rank);
  throw TimeoutError(c10::str("rank 0 waited ", save.timeout.count() / 1000, " s for rank ", names,
                              " to write its part of ", job.target.path));
}

// Keeps nothing of a failed save but the reason, which the other ranks come to read.
void leave_failure(io::FileSystem& files, const SaveJob& job, const std::string& outcome) {
  try {
    files.create_directories(job.directory);  // published, but not durable
    for (const io::DirectoryEntry& entry : files.list(job.directory))
      files.remove_file(io::join_path(job.directory, entry.name));
    leave_message(files, job.directory, kFailedName, outcome);
  } catch (const IoError& error) {
    log::warning(c10::str("the other ranks cannot be told that the save of ", job.target.path,
                          " failed: ", error.what()));
  }
}

std::string lead(io::FileSystem& files, BackgroundSave& save, const std::string& own) {
  SaveJob& job = save.job;
  const std::string directory = job.directory;
  const std::string outcome = outcome_of([&] {
    // Ranks that wait for a file of rank 0 need not wait until the deadline.
    if (!succeeded(own)) leave_message(files, directory, report_name(0), own);
    const auto reports =
        require_success(collect_reports(files, save, own), "writing " + job.target.path);
    return publish_job(files, job, reports);
  });
  job.directory = directory;
  if (!succeeded(outcome)) leave_failure(files, job, outcome);
  return result_of(outcome);
}

// The directory that the save became; empty where there is none (yet).
std::string find_published(io::FileSystem& files, const SaveJob& job) {
  for (const io::DirectoryEntry& entry : files.list(job.root)) {
    const bool named =
        entry.name == job.name || (is_step_name(entry.name) && entry.name.starts_with(job.name + "."));
    if (!named || !entry.is_directory) continue;
    try {
      const auto head = read_manifest_head(files, io::join_path(job.root, entry.name));
      if (head.save_sequence == job.sequence) return entry.name;
    } catch (const Error&) {
      // Not the one that was just published.
    }
  }
  return {};
}

std::string follow(io::FileSystem& files, BackgroundSave& save, const std::string& own) {
  const SaveJob& job = save.job;
  try {
    leave_message(files, job.directory, report_name(job.rank), own);
  } catch (const IoError& error) {
    log::warning(c10::str("rank 0 cannot be told how the save of ", job.target.path,
                          " went here: ", error.what()));
  }
  const std::string failed = io::join_path(job.directory, kFailedName);
  std::string outcome;
  std::string published;
  std::optional<Clock::time_point> gone;
  const auto look = [&] {
    if (files.exists(failed)) {
      outcome = io::read_file(files, failed, kMaxReportBytes);
      return true;
    }
    if (files.is_directory(job.directory)) return false;
    published = find_published(files, job);
    if (!published.empty()) return true;
    // Another host may see the old name vanish before it sees the new one.
    if (!gone) gone = Clock::now();
    if (Clock::now() - *gone > kVisibilityLimit)
      throw IoError(job.directory + " is gone, and no checkpoint came of it");
    return false;
  };
  // Rank 0 waits for the slowest rank, and then publishes.
  if (!poll(save, 2 * save.timeout, look))
    throw TimeoutError(c10::str("rank ", job.rank, " waited ", 2 * save.timeout.count() / 1000,
                                " s for rank 0 to publish ", job.target.path));
  return published.empty() ? result_of(outcome) : published;
}

}  // namespace

std::string meet_and_publish(io::FileSystem& files, BackgroundSave& save,
                             const std::string& outcome) {
  return save.job.leader() ? lead(files, save, outcome) : follow(files, save, outcome);
}

void wait_for_shared_file(io::FileSystem& files, const BackgroundSave& save,
                          const std::string& name) {
  const std::string path = io::join_path(save.job.directory, name);
  const std::string gave_up = io::join_path(save.job.directory, report_name(0));
  const bool came = poll(save, save.timeout, [&] {
    if (files.exists(path)) return true;
    if (files.exists(gave_up)) throw IoError("rank 0 could not create " + path);
    return false;
  });
  if (!came) throw TimeoutError("rank 0 did not create " + path + " in time");
}

}  // namespace tessera::checkpoint
