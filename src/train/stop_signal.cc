#include "stop_signal.h"

#include <fmt/core.h>
#include <tessera/error.h>

#include <cerrno>
#include <csignal>
#include <cstring>

namespace tessera::train::stop_signal {
namespace {

volatile std::sig_atomic_t requested_flag = 0;

// Stays installed after the first signal: a launcher forwards what a terminal has sent to the whole
// process group already, and the second one must not cut the save short.
extern "C" void handle_stop(int) { requested_flag = 1; }

void set_handler(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  if (::sigaction(signal, &action, nullptr) != 0) {
    throw IoError(
        fmt::format("installing the handler of signal {} failed: {}", signal, std::strerror(errno)),
        errno);
  }
}

bool is_ignored(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

void install() {
  set_handler(SIGINT, handle_stop);
  set_handler(SIGTERM, handle_stop);
  // nohup(1) ignores it, so that the run outlives the terminal.
  if (!is_ignored(SIGHUP)) set_handler(SIGHUP, handle_stop);
}

void ignore_write_signals() {
  set_handler(SIGPIPE, SIG_IGN);
  set_handler(SIGXFSZ, SIG_IGN);
}

bool requested() { return requested_flag != 0; }

}  // namespace tessera::train::stop_signal
