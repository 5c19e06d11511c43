#include "io/posix_file.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "tessera/error.h"

namespace tessera::io {
namespace {

// Linux moves at most 0x7ffff000 bytes in one call; smaller pieces also keep a signal's delay low.
constexpr size_t kLargestTransfer = size_t{1} << 30;

const char* advice(int error_number) {
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
      return "; free some space or use another directory, then try again";
    case EACCES:
    case EPERM:
    case EROFS:
      return "; check the permissions or use another directory";
    case EMFILE:
    case ENFILE:
      return "; raise the limit of open files (ulimit -n)";
    default:
      return "";
  }
}

class PosixFile final : public File {
 public:
  PosixFile(PosixCalls& calls, std::string path, int fd)
      : calls_(calls), path_(std::move(path)), fd_(calls, fd) {}

  const std::string& path() const override { return path_; }

  uint64_t size() override {
    struct stat info {};
    if (calls_.fstat(fd(), &info) != 0) throw_io_error("get the size of", path_, errno);
    return static_cast<uint64_t>(info.st_size);
  }

  void read_at(uint64_t offset, void* data, size_t size) override {
    require_range("read", offset, size);
    auto* out = static_cast<char*>(data);
    size_t done = 0;
    while (done < size) {
      const ssize_t count = retry_interrupted([&] {
        return calls_.pread(fd(), out + done, std::min(size - done, kLargestTransfer),
                            static_cast<off_t>(offset + done));
      });
      if (count < 0) throw_io_error("read", path_, errno);
      if (count == 0) {
        throw IoError(fmt::format("cannot read {}: it ends at byte {}, wanted bytes {} to {}",
                                  path_, offset + done, offset, offset + size));
      }
      done += static_cast<size_t>(count);
    }
  }

  void write_at(uint64_t offset, const void* data, size_t size) override {
    require_range("write", offset, size);
    const auto* in = static_cast<const char*>(data);
    size_t done = 0;
    while (done < size) {
      const ssize_t count = retry_interrupted([&] {
        return calls_.pwrite(fd(), in + done, std::min(size - done, kLargestTransfer),
                             static_cast<off_t>(offset + done));
      });
      if (count < 0) throw_io_error("write", path_, errno);
      if (count == 0) {
        throw IoError(
            fmt::format("cannot write {}: the system accepts no byte at {}", path_, offset + done));
      }
      done += static_cast<size_t>(count);
    }
  }

  void allocate(uint64_t size) override {
    require_range("allocate", 0, size);
    if (size == 0) return;
    const auto wanted = static_cast<off_t>(size);
    if (retry_interrupted([&] { return calls_.fallocate(fd(), wanted); }) == 0) return;
    if (errno != EOPNOTSUPP && errno != ENOSYS) throw_io_error("reserve space for", path_, errno);
    if (this->size() < size) truncate(size);
  }

  void truncate(uint64_t size) override {
    require_range("truncate", 0, size);
    const auto wanted = static_cast<off_t>(size);
    if (retry_interrupted([&] { return calls_.ftruncate(fd(), wanted); }) != 0) {
      throw_io_error("truncate", path_, errno);
    }
  }

  void start_writeback(uint64_t offset, uint64_t size) override {
    // Waits for nothing, so it takes no error away from the sync that follows.
    calls_.start_writeback(fd(), static_cast<off_t>(offset), static_cast<off_t>(size));
  }

  void sync() override {
    if (retry_interrupted([&] { return calls_.fdatasync(fd()); }) != 0) {
      throw_io_error("sync", path_, errno);
    }
  }

  void close() override {
    const int fd = fd_.release();
    if (fd < 0) return;
    // After EINTR the descriptor is gone all the same: a second close could hit another file's.
    if (calls_.close(fd) != 0 && errno != EINTR) throw_io_error("close", path_, errno);
  }

 private:
  int fd() const { return fd_.get(); }

  void require_range(const char* operation, uint64_t offset, uint64_t size) const {
    if (fd() < 0) throw IoError(fmt::format("cannot {} {}: it is closed", operation, path_));
    const auto limit = static_cast<uint64_t>(std::numeric_limits<off_t>::max());
    if (size > limit || offset > limit - size) throw_io_error(operation, path_, EOVERFLOW);
  }

  PosixCalls& calls_;
  const std::string path_;
  ScopedFd fd_;
};

int open_flags(OpenMode mode) {
  // O_NONBLOCK: a FIFO must be refused, not waited for; regular files ignore it.
  // O_NOFOLLOW: who can write into a directory must not choose files outside of it.
  constexpr int kCommon = O_CLOEXEC | O_NOCTTY | O_NONBLOCK | O_NOFOLLOW;
  switch (mode) {
    case OpenMode::kRead:
      return kCommon | O_RDONLY;
    case OpenMode::kCreate:
      return kCommon | O_RDWR | O_CREAT | O_EXCL;
    case OpenMode::kReadWrite:
      return kCommon | O_RDWR;
  }
  return kCommon;
}

}  // namespace

void throw_io_error(const std::string& operation, const std::string& path, int error_number) {
  char buffer[128];
  const char* text = ::strerror_r(error_number, buffer, sizeof(buffer));
  throw IoError(fmt::format("cannot {} {}: {}{}", operation, path, text, advice(error_number)),
                error_number);
}

std::unique_ptr<File> open_posix_file(PosixCalls& calls, const std::string& path, OpenMode mode) {
  const char* operation = mode == OpenMode::kCreate ? "create" : "open";
  ScopedFd fd(calls, retry_interrupted([&] {
                return calls.openat(AT_FDCWD, path.c_str(), open_flags(mode), 0666);
              }));
  if (fd.get() < 0) throw_io_error(operation, path, errno);
  struct stat info {};
  if (calls.fstat(fd.get(), &info) != 0) throw_io_error(operation, path, errno);
  if (!S_ISREG(info.st_mode)) {
    throw IoError(fmt::format("cannot {} {}: it is {}", operation, path,
                              S_ISDIR(info.st_mode) ? "a directory" : "not a regular file"),
                  S_ISDIR(info.st_mode) ? EISDIR : EINVAL);
  }
  return std::make_unique<PosixFile>(calls, path, fd.release());
}

}  // namespace tessera::io
