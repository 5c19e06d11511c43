#include "checkpoint/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "io/file_system.h"
#include "tessera/error.h"
#include "util/log.h"

namespace tessera::checkpoint {

namespace {

template <typename Call>
auto retry(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

[[noreturn]] void throw_errno(const std::string& what, int error_number) {
  throw IoError(what + ": " + std::strerror(error_number), error_number);
}

bool has_no_locks(int error_number) {
  return error_number == ENOLCK || error_number == EOPNOTSUPP || error_number == ENOSYS ||
         error_number == EINVAL;
}

// Who holds it, as the holder has written it.
std::string holder(int fd) {
  char text[512];
  const ssize_t size = retry([&] { return ::pread(fd, text, sizeof(text), 0); });
  return size > 0 ? std::string(text, static_cast<size_t>(size)) : "unknown";
}

std::string own_name() {
  char host[256] = {};
  if (::gethostname(host, sizeof(host) - 1) != 0) std::strcpy(host, "unknown");
  return "host " + std::string(host) + ", process " + std::to_string(::getpid());
}

}  // namespace

RunLock::~RunLock() {
  if (fd_ >= 0) ::close(fd_);
}

void RunLock::acquire() {
  if (fd_ >= 0 || unsupported_) return;
  const std::string path = io::join_path(root_, ".lock");
  const int fd = retry([&] { return ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666); });
  if (fd < 0) throw_errno("cannot open " + path, errno);
  if (retry([&] { return ::flock(fd, LOCK_EX | LOCK_NB); }) != 0) {
    const int error_number = errno;
    const std::string who = holder(fd);
    ::close(fd);
    if (error_number == EWOULDBLOCK)
      throw UsageError(root_ + ": another job saves its checkpoints here (" + who +
                       "); give each job a directory of its own, or end the other one first");
    if (!has_no_locks(error_number)) throw_errno("cannot lock " + path, error_number);
    log::info(path + ": this file system has no locks; make sure that one job alone saves here");
    unsupported_ = true;
    return;
  }
  fd_ = fd;
  // Only for the message of another job.
  const std::string name = own_name();
  if (::ftruncate(fd, 0) != 0 || ::pwrite(fd, name.data(), name.size(), 0) < 0)
    log::debug(path + ": the holder's name was not written");
}

}  // namespace tessera::checkpoint
