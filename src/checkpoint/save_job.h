// One save after the ranks have agreed on it: what this rank writes, and what rank 0 does with what
// all have written. Nothing here communicates: the foreground and the background save both use it.
//
// Threads: one at a time. Cost: one pass over the data. Errors: IoError, SaveCancelled.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/file_plan.h"
#include "checkpoint/live_state.h"
#include "checkpoint/reconcile.h"
#include "checkpoint/save.h"
#include "io/file_system.h"

namespace tessera::checkpoint {

struct SaveJob {
  CkptSpec spec;
  SaveTarget target;
  int64_t step = 0;
  SaveOptions options;
  int rank = 0;
  int world_size = 1;
  std::map<std::string, std::string> aliases;
  StateDictContext context;  // what is written: live tensors, or copies of them
  SaveAgreement agreement;
  // Where, as rank 0 decided.
  std::string root;
  std::string name;
  std::string directory;  // the temporary one
  bool recycled = false;  // it holds files of an expired checkpoint, to be overwritten
  std::string leader_host;
  uint64_t sequence = 0;

  bool leader() const { return rank == 0; }
  const PlannedFiles& plan() const { return *agreement.files; }  // of this rank
};

// How far a save is, and whether it shall stop: for other threads.
struct SaveMeter {
  std::atomic<uint64_t> written{0};
  std::atomic<bool> cancelled{false};
  std::atomic<bool> abandoned{false};  // this process does not wait for the others any more
};

// Fills in the job: what the ranks agree on, and the temporary directory that rank 0 claims, in one
// exchange (more where ranks differ). `first` runs on every rank before the claim; what it throws is
// an error on all. A job whose preparation failed may still hold a claim: `remove_temporary`.
// [collective]
void prepare_job(io::FileSystem& files, const LiveState& state, const CkptSpec& spec,
                 const SaveTarget& target, int64_t step, const SaveOptions& options,
                 const std::function<void()>& first, SaveJob& job);

// Rank 0: cleans what earlier saves left, and makes sure that there is room.
void prepare_root(io::FileSystem& files, const SaveJob& job);
// Rank 0: creates the files that all ranks write.
void create_shared_files(io::FileSystem& files, const SaveJob& job);

// Waits until the directory that rank 0 has made can be seen on this host.
void wait_until_visible(io::FileSystem& files, const SaveJob& job,
                        std::chrono::milliseconds timeout);

// Writes this rank's files; returns what rank 0 needs to know of them.
std::string write_files(io::FileSystem& files, const SaveJob& job, SaveMeter& meter);

// Rank 0: writes the manifest over what all ranks report, publishes; returns the directory's name.
std::string publish_job(io::FileSystem& files, SaveJob& job,
                        const std::vector<std::string>& reports);

void remove_temporary(io::FileSystem& files, SaveJob& job);

}  // namespace tessera::checkpoint
