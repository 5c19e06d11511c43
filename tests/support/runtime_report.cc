// Connects, says what it got, and leaves in one of several ways.
//   runtime_report [throw]
#include <torch/torch.h>

#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "tessera/error.h"
#include "tessera/runtime.h"

int main(int argc, char** argv) {
  try {
    const tessera::Runtime runtime = tessera::Runtime::from_environment();
    const torch::Tensor here =
        torch::full({2}, runtime.rank() + 1.0, torch::TensorOptions().device(runtime.device()));
    std::printf("rank %d of %d device %s backend %s sum %g devices %d\n", runtime.rank(),
                runtime.world_size(), runtime.device().str().c_str(),
                runtime.backend_name().c_str(), runtime.sum(here.sum().item<double>()),
                runtime.device().is_cuda() ? static_cast<int>(torch::cuda::device_count()) : 0);
    if (argc > 1 && std::strcmp(argv[1], "throw") == 0) throw std::runtime_error("as asked");
    return 0;
  } catch (const tessera::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 3;
  }
  return 1;
}
