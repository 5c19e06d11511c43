#include "comm/nccl_loader.h"

#include <dlfcn.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <cstdlib>
#include <filesystem>

#include "comm/backends.h"
#include "comm/nccl_communicator.h"
#include "tessera/error.h"
#include "util/first_line.h"

namespace tessera::comm {
namespace {

bool is_file(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

std::optional<std::string> process_environment(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

}  // namespace

std::string find_nccl_library(const GetEnv& get, const std::string& program_directory) {
  const auto named = get("TESSERA_NCCL_LIBRARY");
  if (named && !named->empty()) {
    if (is_file(*named)) return *named;
    throw UsageError("TESSERA_NCCL_LIBRARY=\"" + *named + "\" is not a file");
  }
  const std::filesystem::path directory(program_directory);
  for (const auto& candidate :
       {directory / kNcclLibraryName, directory / ".." / "lib" / kNcclLibraryName}) {
    if (is_file(candidate)) return candidate.string();
  }
  throw UsageError(std::string(kNcclLibraryName) + " is not in " + program_directory +
                   " nor in its ../lib: build it with " +
                   "-DTESSERA_WITH_NCCL=ON, or name it in TESSERA_NCCL_LIBRARY");
}

std::string find_nccl_library() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  return find_nccl_library(process_environment, error ? "." : program.parent_path().string());
}

MakeNcclGroup* load_nccl_library(const std::string& path) {
  // Local: its symbols, and those of the CUDA libraries under it, must not take others' places.
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* reason = ::dlerror();
    throw UsageError(path + " cannot be loaded: " + (reason ? reason : "unknown reason") +
                     "; it needs LibTorch with all of its CUDA libraries (pip install torch, "
                     "without --no-deps)");
  }
  void* symbol = ::dlsym(library, kMakeNcclGroupName);
  if (symbol == nullptr)
    throw UsageError(path + " is not tessera_nccl: it has no symbol " + kMakeNcclGroupName);
  return reinterpret_cast<MakeNcclGroup*>(symbol);
}

void check_torch_sees_cuda() {
  if (!at::globalContext().hasCUDART()) {
    throw UsageError(
        "this program asked LibTorch for CUDA before it created tessera::Runtime, when LibTorch's "
        "CUDA "
        "part was not loaded yet (torch::manual_seed asks): call Runtime::from_environment() "
        "first");
  }
  if (!torch::cuda::is_available()) {
    throw UsageError(
        "the driver shows CUDA devices, but LibTorch cannot use them; is the driver older than the "
        "CUDA "
        "version of this LibTorch?");
  }
}

std::shared_ptr<Communicator> make_nccl(MakeNcclGroup* make_group, const StorePtr& store,
                                        const RankEnvironment& environment, torch::Device device,
                                        std::chrono::milliseconds timeout) {
  // Gloo first: it notices an absent rank within the deadline, NCCL's start does not.
  auto control = make_gloo(c10::make_intrusive<c10d::PrefixStore>("nccl-control", store),
                           environment, timeout);
  control->barrier();
  NcclGroupOptions options;
  options.store = c10::make_intrusive<c10d::PrefixStore>("nccl", store);
  options.rank = environment.rank;
  options.world_size = environment.world_size;
  options.device_index = device.index();
  options.timeout = timeout;
  try {
    std::unique_ptr<NcclGroup> group(make_group(kNcclInterfaceVersion, options));
    return std::make_shared<NcclCommunicator>(std::move(group), std::move(control), store, device);
  } catch (const std::exception& error) {
    throw CommError("rank " + std::to_string(environment.rank) + " cannot start NCCL on " +
                    device.str() + ": " + first_line(error.what()));
  }
}

}  // namespace tessera::comm
