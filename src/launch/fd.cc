#include "launch/fd.h"

#include <fcntl.h>

namespace tessera::launch {

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw_errno(errno == EMFILE ? "cannot create a pipe (a higher limit is set by ulimit -n)"
                                : "cannot create a pipe");
  }
  Pipe pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
  if (::fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0) throw_errno("cannot set a pipe to non-blocking");
  return pipe;
}

void ensure_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    // The lowest free number is `fd`: all below it are open.
    if (::open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY) < 0) {
      throw_errno("cannot open /dev/null");
    }
  }
}

}  // namespace tessera::launch
