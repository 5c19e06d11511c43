// Disturbs another file system on request: the n-th operation fails with a chosen errno, a failing
// write tears in the middle, the disk fills up after k bytes.
//
// A test that first counts the operations of a piece of code and then runs it once for each of
// them, failing that one, has seen every way in which its files can let it down. Threads: any;
// operations are numbered in the order in which they begin. The wrapped file system must outlive
// this one.
#pragma once

#include <array>
#include <mutex>
#include <optional>

#include "io/forwarding_file_system.h"

namespace tessera::io {

enum class FileOperation {
  kOpen,
  kSize,
  kRead,
  kWrite,
  kAllocate,
  kTruncate,
  kSync,
  kClose,
  kLook,  // exists, is_directory, list, free_bytes
  kCreateDirectory,
  kRename,  // rename, replace
  kRemove,  // remove_file, remove_tree
  kSyncDirectory,
};
inline constexpr size_t kFileOperations = 13;

class FaultFileSystem : public ForwardingFileSystem {
 public:
  using ForwardingFileSystem::ForwardingFileSystem;

  // The n-th operation from now on, of any kind or of one, throws IoError; 1 is the next one.
  void fail(int64_t nth, int error_number);
  void fail(FileOperation kind, int64_t nth, int error_number);
  // As above, and so does every operation after it: the process has lost its disk.
  void fail_from(int64_t nth, int error_number);
  // A write that is made to fail first writes this share of its bytes (0, the default, to 1).
  void tear_writes(double share);
  // From now on the files may grow by `bytes` in all; then a write stores what fits and throws
  // ENOSPC. free_bytes reports what is left. What is removed or truncated makes room again.
  void limit_space(uint64_t bytes);
  // allocate() does nothing, as on a file system without the operation.
  void ignore_allocate(bool value);
  // Forgets faults and limits; counters go on.
  void heal();

  int64_t operations() const;
  int64_t operations(FileOperation kind) const;

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
  class FaultFile;
  struct Fault {
    std::optional<FileOperation> kind;
    int64_t number = 0;  // of the operation, in the count of its kind
    bool persists = false;
    int error_number = 0;
  };

  // Counts the operation; the errno that it shall fail with, 0 for none.
  int begin(FileOperation kind);
  // begin, and throws where it shall fail.
  void enter(FileOperation kind, const std::string& operation, const std::string& path);
  double torn_share() const;
  bool allocate_ignored() const;
  bool space_limited() const;
  // Takes room for a file to grow by `bytes`; returns how much of it there is.
  uint64_t take_space(uint64_t bytes);
  void give_space(uint64_t bytes);
  // Runs `remove` and counts the bytes under `path` as free again.
  template <typename Remove>
  void freeing(const std::string& path, Remove remove);

  mutable std::mutex mutex_;
  std::array<int64_t, kFileOperations> counts_{};
  int64_t total_ = 0;
  std::vector<Fault> faults_;
  double torn_share_ = 0;
  bool ignore_allocate_ = false;
  std::optional<uint64_t> space_left_;
};

}  // namespace tessera::io
