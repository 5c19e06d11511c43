// Owners for what the launcher holds from the kernel: file descriptors and pipes.
//
// Threads: as an int; no object is shared.
// Errors: IoError with the name of the failed call.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "tessera/error.h"

namespace tessera::launch {

// Turns errno into an IoError that says what was attempted.
[[noreturn]] inline void throw_errno(const std::string& what, int error = errno) {
  throw IoError(what + ": " + std::strerror(error), error);
}

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

struct Pipe {
  UniqueFd read_end;
  UniqueFd write_end;
};

// Both ends close on exec; the read end does not block.
Pipe make_pipe();

// Opens /dev/null in place of a closed standard stream, so that no pipe can end up as one.
void ensure_standard_streams();

}  // namespace tessera::launch
