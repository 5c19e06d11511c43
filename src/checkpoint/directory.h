// Directories of a run: how checkpoints are named, claimed, published, ordered, set aside, expired.
//
//   root/step-00000060      a checkpoint; step-00000060.1 where that name was taken
//   root/step-*.pinned      made by people: the checkpoint of this name is never removed
//   root/LATEST             the name of the newest one, a hint for people
//   root/.lock              held by the job that saves here (run_lock.h)
//   root/.saving-*          a save that is running, or was interrupted (cleaned by the next save)
//   root/.deleting-*        an expired checkpoint on its way out (cleaned by the next save)
//   root/.recycled-*        an expired checkpoint whose files the next save overwrites (recycle.h)
//   root/damaged-*          set aside by a load, never deleted
//
// Order is by save sequence from the manifests, never by name or clock.
// Threads: reentrant. Cost: a listing reads 4 KiB of each manifest.
// Errors: IoError. A directory whose content cannot be understood is skipped with a reason.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "io/file_system.h"

namespace tessera::checkpoint {

// In the directory of a save that failed: why, for ranks that still wait.
inline constexpr const char* kFailedName = ".failed";

std::string step_name(int64_t step);
bool is_step_name(const std::string& name);

struct ListedCheckpoint {
  std::string name;
  ManifestHead head;
};

struct RunListing {
  std::vector<ListedCheckpoint> checkpoints;  // step-* only, newest save first
  std::vector<std::string> skipped;           // "name: why"
  uint64_t highest_sequence = 0;  // of every directory with a manifest, damaged ones too
};

// A root that does not exist is an empty run.
RunListing list_run(io::FileSystem& files, const std::string& root);

// Splits a checkpoint's path into its parent ("." where there is none) and name.
std::pair<std::string, std::string> split_path(const std::string& path);

struct Claim {
  std::string path;
  bool recycled = false;  // it holds files of an expired checkpoint
};

// Creates and claims root/.saving-<name>-<host>-<pid>-<n>, with `recycle` out of a recycled
// checkpoint where there is one.
Claim claim_temporary(io::FileSystem& files, const std::string& root, const std::string& name,
                      bool recycle = false);

// Removes what interrupted saves and deletions of processes that no longer run have left in `root`;
// returns one line for each directory removed, and for each left because its owner may be alive.
// `own` is the caller's and left without a word.
std::vector<std::string> clean_leftovers(io::FileSystem& files, const std::string& root,
                                         const std::string& own = {});

// Renames the finished directory to root/name, with `may_number` to root/name.1, .2, ... where that
// exists. Returns the name. With `sync` the parent is durable afterwards.
std::string publish(io::FileSystem& files, const std::string& temporary, const std::string& root,
                    const std::string& name, bool may_number, bool sync);

// Writes the hint root/LATEST.
void write_latest_hint(io::FileSystem& files, const std::string& root, const std::string& name);

// Renames root/name to root/damaged-name[.n]; returns the new name.
std::string set_aside(io::FileSystem& files, const std::string& root, const std::string& name);

struct Retention {
  int64_t keep_last = 0;   // the newest ones; 0: all
  int64_t keep_every = 0;  // those of steps that are a multiple of it, for ever; 0: none
  bool recycle = false;    // keep the files of the newest one that goes for the next save
};

// Removes what is not kept, never `just_saved` and never one beside which a file <name>.pinned lies.
std::vector<std::string> expire(io::FileSystem& files, const std::string& root,
                                const Retention& retention, const std::string& just_saved);

// The checkpoint that `path` means: itself, or the newest one of a run. Throws UsageError.
std::string resolve_checkpoint(io::FileSystem& files, const std::string& path);

}  // namespace tessera::checkpoint
