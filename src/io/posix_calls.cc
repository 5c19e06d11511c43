#include "io/posix_calls.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

namespace tessera::io {

int PosixCalls::openat(int directory, const char* path, int flags, mode_t mode) {
  return ::openat(directory, path, flags, mode);
}
int PosixCalls::close(int fd) { return ::close(fd); }
ssize_t PosixCalls::pread(int fd, void* data, size_t size, off_t offset) {
  return ::pread(fd, data, size, offset);
}
ssize_t PosixCalls::pwrite(int fd, const void* data, size_t size, off_t offset) {
  return ::pwrite(fd, data, size, offset);
}
int PosixCalls::fallocate(int fd, off_t size) { return ::fallocate(fd, 0, 0, size); }
int PosixCalls::start_writeback(int fd, off_t offset, off_t size) {
  return ::sync_file_range(fd, offset, size, SYNC_FILE_RANGE_WRITE);
}
int PosixCalls::ftruncate(int fd, off_t size) { return ::ftruncate(fd, size); }
int PosixCalls::fdatasync(int fd) { return ::fdatasync(fd); }
int PosixCalls::fsync(int fd) { return ::fsync(fd); }
int PosixCalls::fstat(int fd, struct stat* out) { return ::fstat(fd, out); }
int PosixCalls::fstatat(int directory, const char* path, struct stat* out, int flags) {
  return ::fstatat(directory, path, out, flags);
}
int PosixCalls::mkdir(const char* path, mode_t mode) { return ::mkdir(path, mode); }
int PosixCalls::rename(const char* from, const char* to) { return ::rename(from, to); }
int PosixCalls::rename_noreplace(const char* from, const char* to) {
  return ::renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE);
}
int PosixCalls::link(const char* from, const char* to) { return ::link(from, to); }
int PosixCalls::unlinkat(int directory, const char* path, int flags) {
  return ::unlinkat(directory, path, flags);
}
int PosixCalls::statvfs(const char* path, struct statvfs* out) { return ::statvfs(path, out); }
DIR* PosixCalls::fdopendir(int fd) { return ::fdopendir(fd); }
struct dirent* PosixCalls::readdir(DIR* stream) {
  return ::readdir(stream);
}
int PosixCalls::closedir(DIR* stream) { return ::closedir(stream); }

}  // namespace tessera::io
