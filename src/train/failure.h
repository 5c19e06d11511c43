// How the ranks of a run fail together: the same error on all of them, printed once.
//
// Threads: one. Cost: `agree` is one small exchange.
#pragma once

#include <tessera/error.h>
#include <tessera/runtime.h>

#include <functional>
#include <stdexcept>
#include <string>

namespace tessera::train {

// A failure that every rank knows of; rank 0 speaks for all.
class AgreedFailure : public std::runtime_error {
 public:
  AgreedFailure(const std::string& message, int exit_code)
      : std::runtime_error(message), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

// Runs something local; where it fails on one rank, every rank throws AgreedFailure. [collective]
void agree(const Runtime& runtime, const std::function<void()>& action);

// Runs something that fails on all ranks or on none. A lost peer stays a CommError. [collective]
void together(const std::function<void()>& action);

// Runs the program and turns what it throws into one line on standard error and an exit code.
int run_to_exit_code(const Runtime& runtime, const std::function<int()>& program);

}  // namespace tessera::train
