// A disk in memory that knows what was synced, and a machine on it that can lose power.
//
// Content is durable after File::sync, a name after sync_directory of its directory, nothing else:
// stricter than most file systems, as strict as POSIX. Together with FaultFileSystem::fail_from,
// which stops a program at any operation, it answers what a reader finds after a crash there.
// No symbolic links, no "..". Threads: any. Cost: everything is held in memory, under one lock.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "io/file_system.h"

namespace tessera::io {

// What a crash leaves of what was not synced.
enum class Survivors {
  kNothing,     // neither names nor content
  kNames,       // every name and size, but zeros instead of unsynced content
  kSome,        // each change of a name and each file's content, or a part of it, or not, by chance
  kEverything,  // the system had written all of it by chance
};

class CrashFileSystem : public FileSystem {
 public:
  CrashFileSystem();
  ~CrashFileSystem() override;

  // Afterwards the disk holds what survived, all of it durable, and files that were open before
  // fail with EIO. `seed` decides what kSome means. A rename survives whole or not at all, as on
  // any file system with a journal, but renames may survive in another order than they were made
  // in.
  void crash(Survivors survivors, uint64_t seed = 0);

  std::unique_ptr<File> open(const std::string& path, OpenMode mode) override;
  bool exists(const std::string& path) override;
  bool is_directory(const std::string& path) override;
  void create_directories(const std::string& path) override;
  bool create_directory(const std::string& path) override;
  std::vector<DirectoryEntry> list(const std::string& path) override;
  void rename(const std::string& from, const std::string& to) override;
  void replace(const std::string& from, const std::string& to) override;
  void remove_file(const std::string& path) override;
  void remove_tree(const std::string& path) override;
  void sync_directory(const std::string& path) override;
  uint64_t free_bytes(const std::string& path) override;

 private:
  struct Node;
  class OpenFile;
  using NodePtr = std::shared_ptr<Node>;
  struct Place {  // a name in an existing directory
    NodePtr directory;
    std::string name;
  };

  NodePtr find(const std::string& path) const;  // null where there is nothing
  NodePtr require_directory(const std::string& operation, const std::string& path) const;
  Place place_of(const std::string& operation, const std::string& path) const;
  void move(const std::string& from, const std::string& to, bool may_replace);

  std::mutex mutex_;
  NodePtr root_;
  int boots_ = 0;
};

}  // namespace tessera::io
