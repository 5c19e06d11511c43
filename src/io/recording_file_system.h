// Records which bytes of which files are read and written, so that a test can say "a load reads
// exactly these" and a tool can say how much it read.
//
// Threads: any. Cost: one lock and one record an access. The wrapped file system must outlive it.
#pragma once

#include <mutex>

#include "io/forwarding_file_system.h"

namespace tessera::io {

struct FileAccess {
  std::string path;
  uint64_t offset = 0;
  uint64_t size = 0;
  bool operator==(const FileAccess&) const = default;
};

class RecordingFileSystem : public ForwardingFileSystem {
 public:
  using ForwardingFileSystem::ForwardingFileSystem;
  std::unique_ptr<File> open(const std::string& path, OpenMode mode) override;

  // Completed accesses in the order of their completion; failed ones are not there.
  std::vector<FileAccess> reads() const;
  std::vector<FileAccess> writes() const;
  uint64_t bytes_read() const;
  uint64_t bytes_written() const;
  void clear();

 private:
  class RecordingFile;
  void add(std::vector<FileAccess>& list, FileAccess access);

  mutable std::mutex mutex_;
  std::vector<FileAccess> reads_;
  std::vector<FileAccess> writes_;
};

}  // namespace tessera::io
