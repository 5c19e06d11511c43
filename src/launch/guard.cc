#include "launch/guard.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <thread>

#include "launch/child_process.h"
#include "launch/options.h"

namespace tessera::launch {
namespace {

// Async-signal-safe: this is the child of a fork.
[[noreturn]] void run_guard(int pipe) {
  ::setsid();
  ::prctl(PR_SET_NAME, "tessera-guard");
  // It must not keep the launcher's streams open for those who read them.
  ::dup2(pipe, 0);
  close_from(1);
  std::array<pid_t, kMaxRanks> groups;
  size_t count = 0;
  while (true) {
    pid_t message = 0;
    const ssize_t size = ::read(0, &message, sizeof(message));
    if (size < 0 && errno == EINTR) continue;
    if (size != sizeof(message)) break;
    if (message > 0 && count < groups.size()) groups[count++] = message;
    for (size_t i = 0; message < 0 && i < count; ++i) {
      if (groups[i] == -message) groups[i--] = groups[--count];
    }
  }
  for (size_t i = 0; i < count; ++i) ::kill(-groups[i], SIGKILL);
  ::_exit(0);
}

}  // namespace

Guard::Guard() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_errno("cannot create a pipe");
  const UniqueFd read_end(ends[0]);
  pipe_ = UniqueFd(ends[1]);
  pid_ = plain_fork();
  if (pid_ < 0) throw_errno("cannot start a process");
  if (pid_ == 0) run_guard(read_end.get());
}

Guard::~Guard() {
  pipe_.reset();
  constexpr auto kWait = std::chrono::seconds(1);
  const auto deadline = std::chrono::steady_clock::now() + kWait;
  while (::waitpid(pid_, nullptr, WNOHANG) == 0 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void Guard::send(pid_t message) {
  ssize_t written = 0;
  do {
    written = ::write(pipe_.get(), &message, sizeof(message));
  } while (written < 0 && errno == EINTR);
  // A guard that somebody has killed is missed only when the launcher is killed, too.
}

}  // namespace tessera::launch
