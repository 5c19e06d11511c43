#include "failure.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "options.h"

namespace tessera::train {
namespace {

struct Failure {
  std::string message;
  int exit_code = kFailed;
};

// Of the exception that is being handled.
Failure current_failure() {
  try {
    throw;
  } catch (const AgreedFailure& error) {
    return {error.what(), error.exit_code()};
  } catch (const CommError& error) {
    return {error.what(), kPeerLost};
  } catch (const UsageError& error) {
    return {error.what(), kBadUsage};
  } catch (const c10::Error& error) {
    return {error.what_without_backtrace(), kFailed};
  } catch (const std::exception& error) {
    return {error.what(), kFailed};
  }
}

void print_failure(const std::string& message) {
  std::fputs(c10::str("tessera-train: ", message, "\n").c_str(), stderr);
}

}  // namespace

void agree(const Runtime& runtime, const std::function<void()>& action) {
  Failure mine{{}, kComplete};
  try {
    action();
  } catch (...) {
    mine = current_failure();
  }
  const std::string packed =
      mine.exit_code == kComplete ? "" : c10::str(mine.exit_code, " ", mine.message);
  const std::vector<std::string> all = runtime.all_gather_bytes(packed);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    const size_t space = all[rank].find(' ');
    std::string message = all[rank].substr(space + 1);
    if (all[rank] != all.front()) message += c10::str(" (on rank ", rank, ")");
    throw AgreedFailure(message, std::stoi(all[rank].substr(0, space)));
  }
}

void together(const std::function<void()>& action) {
  try {
    action();
  } catch (const CommError&) {
    throw;
  } catch (const Error&) {
    const Failure failure = current_failure();
    throw AgreedFailure(failure.message, failure.exit_code);
  }
}

int run_to_exit_code(const Runtime& runtime, const std::function<int()>& program) {
  try {
    return program();
  } catch (const AgreedFailure& failure) {
    if (runtime.rank() == 0) print_failure(failure.what());
    // A launcher ends the others when one rank has failed: rank 0 must have spoken before that.
    try {
      runtime.barrier();
    } catch (const Error&) {
    }
    return failure.exit_code();
  } catch (...) {
    const Failure failure = current_failure();
    print_failure(failure.message);
    // At once: destructors might wait for peers that are no more.
    std::fflush(nullptr);
    std::_Exit(failure.exit_code);
  }
}

}  // namespace tessera::train
