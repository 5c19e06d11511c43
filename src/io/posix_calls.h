// The system calls behind the machine's own files, one virtual function each, so that a test can
// make any of them fail with any errno, return short or be interrupted.
// Conventions are those of the calls themselves: -1 or a null pointer, and errno.
// Threads: stateless. Cost: one indirect call.
#pragma once

#include <dirent.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>

#include <memory>

#include "io/file_system.h"

namespace tessera::io {

class PosixCalls {
 public:
  virtual ~PosixCalls() = default;
  virtual int openat(int directory, const char* path, int flags, mode_t mode);
  virtual int close(int fd);
  virtual ssize_t pread(int fd, void* data, size_t size, off_t offset);
  virtual ssize_t pwrite(int fd, const void* data, size_t size, off_t offset);
  virtual int fallocate(int fd, off_t size);
  virtual int ftruncate(int fd, off_t size);
  virtual int start_writeback(int fd, off_t offset, off_t size);  // sync_file_range(2)
  virtual int fdatasync(int fd);
  virtual int fsync(int fd);
  virtual int fstat(int fd, struct stat* out);
  virtual int fstatat(int directory, const char* path, struct stat* out, int flags);
  virtual int mkdir(const char* path, mode_t mode);
  virtual int rename(const char* from, const char* to);
  virtual int rename_noreplace(const char* from, const char* to);
  virtual int link(const char* from, const char* to);
  virtual int unlinkat(int directory, const char* path, int flags);
  virtual int statvfs(const char* path, struct statvfs* out);
  virtual DIR* fdopendir(int fd);
  virtual struct dirent* readdir(DIR* stream);
  virtual int closedir(DIR* stream);
};

// `calls` must outlive the result and every file opened through it.
std::unique_ptr<FileSystem> make_posix_file_system(PosixCalls& calls);

}  // namespace tessera::io
