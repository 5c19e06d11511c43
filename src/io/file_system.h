// The one seam through which Tessera touches files. Production code takes a `FileSystem&`; tests
// pass one that injects faults, records which bytes were read, or loses what was not synced.
//
// Threads: a FileSystem may be used from many threads; one File from one thread at a time, except
// `read_at`/`write_at`, which carry their own offset and may run concurrently.
// Errors: every call throws IoError with the path, the operation and the errno text; short reads
// and writes and EINTR are handled inside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tessera::io {

class File {
 public:
  virtual ~File() = default;
  virtual const std::string& path() const = 0;
  virtual uint64_t size() = 0;
  // Fills all of [data, data + size); an end of file before that is an IoError that says so.
  virtual void read_at(uint64_t offset, void* data, size_t size) = 0;
  virtual void write_at(uint64_t offset, const void* data, size_t size) = 0;
  // Reserves [0, size) so that later writes cannot fail for lack of space; a file system without
  // the operation is not an error.
  virtual void allocate(uint64_t size) = 0;
  virtual void truncate(uint64_t size) = 0;
  // A hint that a `sync` of [offset, offset + size) comes soon: the disk may begin while the caller
  // goes on. Promises nothing and never fails; an error shows in `sync`.
  virtual void start_writeback(uint64_t offset, uint64_t size) {
    static_cast<void>(offset);
    static_cast<void>(size);
  }
  virtual void sync() = 0;
  // Reports the error that a destructor would swallow. Idempotent.
  virtual void close() = 0;
};

enum class OpenMode {
  kRead,
  kCreate,     // fails where the path exists
  kReadWrite,  // the path must exist
};

struct DirectoryEntry {
  std::string name;
  bool is_directory = false;
  bool is_symlink = false;
  uint64_t size = 0;
  uint64_t links = 1;  // names that the file has
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual std::unique_ptr<File> open(const std::string& path, OpenMode mode) = 0;
  virtual bool exists(const std::string& path) = 0;
  virtual bool is_directory(const std::string& path) = 0;
  // Like mkdir -p.
  virtual void create_directories(const std::string& path) = 0;
  // Returns false where the directory existed already: an exclusive claim.
  virtual bool create_directory(const std::string& path) = 0;
  virtual std::vector<DirectoryEntry> list(const std::string& path) = 0;  // sorted by name
  // Fails where the target exists (RENAME_NOREPLACE); use replace for files.
  virtual void rename(const std::string& from, const std::string& to) = 0;
  virtual void replace(const std::string& from, const std::string& to) = 0;
  virtual void remove_file(const std::string& path) = 0;
  virtual void remove_tree(const std::string& path) = 0;
  virtual void sync_directory(const std::string& path) = 0;
  virtual uint64_t free_bytes(const std::string& path) = 0;
};

// The machine's own files.
FileSystem& real_file_system();

// Whole-file helpers; `write_file` creates, writes and syncs.
std::string read_file(FileSystem& files, const std::string& path, uint64_t limit_bytes);
void write_file(FileSystem& files, const std::string& path, const std::string& content);

std::string join_path(const std::string& directory, const std::string& name);

}  // namespace tessera::io
