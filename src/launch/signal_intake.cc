#include "launch/signal_intake.h"

#include <sys/signalfd.h>

#include <array>
#include <csignal>

namespace tessera::launch {
namespace {

constexpr std::array<int, 4> kStopSignals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
constexpr std::array<int, 4> kOtherSignals = {SIGCHLD, SIGUSR1, SIGUSR2, SIGTSTP};

bool is_ignored(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

SignalIntake::SignalIntake() {
  struct sigaction default_action {};
  default_action.sa_handler = SIG_DFL;
  // Inherited as ignored, the kernel would collect the children and keep their exit codes.
  if (::sigaction(SIGCHLD, &default_action, nullptr) != 0) throw_errno("cannot set SIGCHLD");
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  if (::sigaction(SIGPIPE, &ignore, &inherited_.pipe_action) != 0)
    throw_errno("cannot set SIGPIPE");

  sigset_t taken;
  sigemptyset(&taken);
  for (const int signal : kStopSignals) {
    if (!is_ignored(signal)) sigaddset(&taken, signal);
  }
  for (const int signal : kOtherSignals) {
    if (!is_ignored(signal)) sigaddset(&taken, signal);
  }
  if (::sigprocmask(SIG_BLOCK, &taken, &inherited_.mask) != 0) throw_errno("cannot block signals");
  fd_ = UniqueFd(::signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd_) throw_errno("cannot receive signals");
}

SignalIntake::~SignalIntake() {
  ::sigaction(SIGPIPE, &inherited_.pipe_action, nullptr);
  ::sigprocmask(SIG_SETMASK, &inherited_.mask, nullptr);
}

std::optional<int> SignalIntake::next() {
  signalfd_siginfo info{};
  while (true) {
    const ssize_t count = ::read(fd_.get(), &info, sizeof(info));
    if (count < 0 && errno == EINTR) continue;
    if (count != sizeof(info)) return std::nullopt;
    return static_cast<int>(info.ssi_signo);
  }
}

bool is_stop_signal(int signal) {
  for (const int stop : kStopSignals) {
    if (stop == signal) return true;
  }
  return false;
}

}  // namespace tessera::launch
