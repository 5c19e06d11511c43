// Pieces that the machine's own files and directories share: errors, retries, one open file.
// Threads and errors: as in file_system.h.
#pragma once

#include <cerrno>
#include <memory>
#include <string>

#include "io/posix_calls.h"

namespace tessera::io {

// Throws IoError "cannot <operation> <path>: <errno text>" with advice where there is some.
[[noreturn]] void throw_io_error(const std::string& operation, const std::string& path,
                                 int error_number);

// Repeats a call that a signal interrupted.
template <typename Call>
auto retry_interrupted(Call call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

// Closes on scope exit; the caller has nothing left to learn from the result.
class ScopedFd {
 public:
  ScopedFd(PosixCalls& calls, int fd) : calls_(calls), fd_(fd) {}
  ScopedFd(const ScopedFd&) = delete;
  ScopedFd& operator=(const ScopedFd&) = delete;
  ~ScopedFd() {
    if (fd_ >= 0) calls_.close(fd_);
  }
  int get() const { return fd_; }
  int release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }

 private:
  PosixCalls& calls_;
  int fd_;
};

std::unique_ptr<File> open_posix_file(PosixCalls& calls, const std::string& path, OpenMode mode);

}  // namespace tessera::io
