#include "run.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <thread>

#include "failure.h"
#include "trainer.h"

namespace tessera::train {
namespace {

void set_threads(const TrainOptions& options, const Runtime& runtime) {
  if (options.threads > 0) {
    at::set_num_threads(options.threads);
  } else if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    at::set_num_threads(std::max(1, cores / runtime.local_world_size()));
  }
}

// Without a Runtime there is nobody to agree with: each rank speaks for itself.
std::optional<Runtime> connect(int& exit_code) {
  try {
    return Runtime::from_environment();
  } catch (const std::exception& error) {
    const bool usage = dynamic_cast<const UsageError*>(&error) != nullptr;
    const bool lost = dynamic_cast<const CommError*>(&error) != nullptr;
    exit_code = usage ? kBadUsage : (lost ? kPeerLost : kFailed);
    std::fprintf(stderr, "tessera-train: %s\n", error.what());
    return std::nullopt;
  }
}

}  // namespace

int run(const TrainOptions& options) {
  int exit_code = kFailed;
  const std::optional<Runtime> runtime = connect(exit_code);
  if (!runtime) return exit_code;
  return run_to_exit_code(*runtime, [&] {
    set_threads(options, *runtime);
    return Trainer(options, *runtime).run();
  });
}

int refuse(const std::string& message, int exit_code) {
  int connect_exit_code = kFailed;
  const std::optional<Runtime> runtime = connect(connect_exit_code);
  if (!runtime) {
    std::fprintf(stderr, "tessera-train: %s\n", message.c_str());
    return exit_code;
  }
  return run_to_exit_code(*runtime, [&]() -> int { throw AgreedFailure(message, exit_code); });
}

}  // namespace tessera::train
