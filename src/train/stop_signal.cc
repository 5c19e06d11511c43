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

}  // namespace

void install() {
  struct sigaction action {};
  action.sa_handler = handle_stop;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGINT, SIGTERM}) {
    if (::sigaction(signal, &action, nullptr) != 0) {
      throw IoError(fmt::format("installing the handler of signal {} failed: {}", signal,
                                std::strerror(errno)),
                    errno);
    }
  }
}

bool requested() { return requested_flag != 0; }

}  // namespace tessera::train::stop_signal
