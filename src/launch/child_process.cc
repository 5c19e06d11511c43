#include "launch/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cstring>
#include <string_view>

namespace tessera::launch {
namespace {

constexpr int kCannotExecute = 126;
constexpr int kNotFound = 127;

// Where the kernel does not know the call, only what others opened without O_CLOEXEC stays open.
void close_on_exec_from(int first) {
#ifdef SYS_close_range
  constexpr unsigned kCloseOnExec = 1U << 2;  // CLOSE_RANGE_CLOEXEC
  ::syscall(SYS_close_range, static_cast<unsigned>(first), ~0U, kCloseOnExec);
#endif
}

// Runs in the child: async-signal-safe calls only, no allocation.
[[noreturn]] void run_child(const SpawnRequest& request, char* const* arguments,
                            char* const* environment, pid_t launcher, int status_fd) {
  const auto fail = [status_fd]() {
    const int error = errno;
    ssize_t ignored = ::write(status_fd, &error, sizeof(error));
    static_cast<void>(ignored);
    ::_exit(kNotFound);
  };
  if (::setpgid(0, 0) != 0) fail();
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) fail();
  // The launcher may have died before the signal was armed.
  if (::getppid() != launcher) ::_exit(kNotFound);
  if (::dup2(request.standard_input, 0) < 0) fail();
  if (::dup2(request.standard_output, 1) < 0) fail();
  if (::dup2(request.standard_error, 2) < 0) fail();
  close_on_exec_from(3);
  if (::sigaction(SIGPIPE, &request.signals->pipe_action, nullptr) != 0) fail();
  if (::sigprocmask(SIG_SETMASK, &request.signals->mask, nullptr) != 0) fail();
  ::execve(request.path.c_str(), arguments, environment);
  fail();
  ::_exit(kNotFound);
}

// An errno that says why this file cannot be executed, 0 where it can.
int executable_error(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return errno;
  if (S_ISDIR(info.st_mode)) return EISDIR;
  return ::access(path.c_str(), X_OK) == 0 ? 0 : errno;
}

bool is_absent(int error) { return error == ENOENT || error == ENOTDIR; }

}  // namespace

pid_t plain_fork() {
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 34)
  return ::_Fork();
#else
  return ::fork();
#endif
}

void close_from(int first) {
#ifdef SYS_close_range
  if (::syscall(SYS_close_range, static_cast<unsigned>(first), ~0U, 0U) == 0) return;
#endif
  constexpr int kHighest = 1024;
  for (int fd = first; fd < kHighest; ++fd) ::close(fd);
}

ExitStatus ExitStatus::from_wait(int wait_status) {
  ExitStatus status;
  status.signaled = WIFSIGNALED(wait_status);
  status.value = status.signaled ? WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
  status.core_dumped = status.signaled && WCOREDUMP(wait_status);
  return status;
}

std::string ExitStatus::describe() const {
  if (!signaled) return fmt::format("exited with code {}", value);
  return fmt::format("was killed by {}{}", signal_name(value), core_dumped ? " (core dumped)" : "");
}

std::string signal_name(int signal) {
  if (const char* name = ::sigabbrev_np(signal)) return fmt::format("SIG{}", name);
  return fmt::format("signal {}", signal);
}

ResolvedProgram resolve_program(const std::string& name, const std::string& search_path) {
  if (name.find('/') != std::string::npos) {
    const int error = executable_error(name);
    if (error == 0) return {name, 0, {}};
    return {{},
            is_absent(error) ? kNotFound : kCannotExecute,
            fmt::format("cannot execute '{}': {}", name, std::strerror(error))};
  }
  std::string refused;
  int refused_error = 0;
  std::string_view rest = search_path;
  while (true) {
    const size_t colon = rest.find(':');
    const std::string_view folder = rest.substr(0, colon);
    const std::string path = folder.empty() ? "./" + name : fmt::format("{}/{}", folder, name);
    const int error = executable_error(path);
    if (error == 0) return {path, 0, {}};
    if (!is_absent(error) && error != EISDIR && refused.empty()) {
      refused = path;
      refused_error = error;
    }
    if (colon == std::string_view::npos) break;
    rest.remove_prefix(colon + 1);
  }
  if (!refused.empty()) {
    return {{},
            kCannotExecute,
            fmt::format("cannot execute '{}': {}", refused, std::strerror(refused_error))};
  }
  const bool here = executable_error("./" + name) == 0;
  return {{},
          kNotFound,
          fmt::format("program '{0}' was not found in PATH{1}", name,
                      here ? fmt::format(" (did you mean './{}'?)", name) : "")};
}

SpawnedProcess spawn(const SpawnRequest& request) {
  std::vector<std::string> storage = request.arguments;
  std::vector<char*> arguments;
  arguments.reserve(storage.size() + 1);
  for (std::string& argument : storage) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  const std::vector<char*> environment = request.environment->pointers();
  Pipe status = make_pipe();

  const pid_t launcher = ::getpid();
  const pid_t pid = plain_fork();
  if (pid < 0) throw_errno("cannot start a process");
  if (pid == 0) {
    run_child(request, arguments.data(), environment.data(), launcher, status.write_end.get());
  }
  // The child does the same; whoever comes first, the group exists before a signal is sent to it.
  // It fails where the child has already executed its program, and then the child has done it.
  static_cast<void>(::setpgid(pid, pid));
  return {pid, std::move(status.read_end)};
}

}  // namespace tessera::launch
