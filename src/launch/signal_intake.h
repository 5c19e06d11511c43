// The launcher's signals, read from a descriptor like everything else it waits for.
//
// Create it before any other thread exists: threads inherit the blocked mask, and a signal must not
// find one that would take it. What the caller of the launcher had set to be ignored stays ignored.
// Threads: one.
#pragma once

#include <optional>

#include "launch/child_process.h"
#include "launch/fd.h"

namespace tessera::launch {

class SignalIntake {
 public:
  SignalIntake();
  ~SignalIntake();
  SignalIntake(const SignalIntake&) = delete;
  SignalIntake& operator=(const SignalIntake&) = delete;

  int fd() const { return fd_.get(); }
  // The next signal that has arrived; nothing where none has.
  std::optional<int> next();
  // For the children: as it was before.
  const InheritedSignals& inherited() const { return inherited_; }

 private:
  InheritedSignals inherited_{};
  UniqueFd fd_;
};

// Asks the run to end.
bool is_stop_signal(int signal);

}  // namespace tessera::launch
