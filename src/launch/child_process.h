// Starting one program and saying how it ended.
//
// The child leads a process group of its own and dies with the launcher (parent-death signal).
// Between fork and exec it makes only async-signal-safe calls, so threads that hold locks in the
// launcher do no harm.
//
// Threads: call from the thread that lives as long as the launcher does: the parent-death signal is
// tied to the thread that forked.
// Cost: one fork and exec; nothing waits for the exec, its error comes through a pipe.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include "launch/environment.h"
#include "launch/fd.h"

namespace tessera::launch {

// How a process ended.
struct ExitStatus {
  bool signaled = false;
  int value = 0;  // exit code, or signal number
  bool core_dumped = false;

  static ExitStatus from_wait(int wait_status);
  bool ok() const { return !signaled && value == 0; }
  // The code a shell would give: 128 + signal for a signal.
  int code() const { return signaled ? 128 + value : value; }
  std::string describe() const;
};

// "SIGSEGV"; "signal 77" for a number without a name.
std::string signal_name(int signal);

// The file that an exec of `name` with this PATH would run.
struct ResolvedProgram {
  std::string path;   // empty where it cannot be run
  int exit_code = 0;  // 126 or 127 then
  std::string problem;
};
ResolvedProgram resolve_program(const std::string& name, const std::string& search_path);

// What the launcher found in place when it was started, and gives to its children.
struct InheritedSignals {
  sigset_t mask;
  struct sigaction pipe_action;
};

struct SpawnRequest {
  std::string path;
  std::vector<std::string> arguments;  // with the program's name in front
  EnvironmentBlock* environment = nullptr;
  int standard_input = 0;
  int standard_output = 1;
  int standard_error = 2;
  const InheritedSignals* signals = nullptr;
};

struct SpawnedProcess {
  pid_t pid = -1;
  UniqueFd exec_status;  // end of file: exec succeeded; else the errno of exec, as an int
};

SpawnedProcess spawn(const SpawnRequest& request);

// fork() runs handlers of every library in the process and takes locks; this does not. The child
// may make async-signal-safe calls only.
pid_t plain_fork();
// Closes every descriptor from `first` on. Async-signal-safe.
void close_from(int first);

}  // namespace tessera::launch
