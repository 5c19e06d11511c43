#include "tessera/runtime.h"

#include <torch/torch.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "comm/backends.h"
#include "comm/cuda_devices.h"
#include "comm/nccl_loader.h"
#include "comm/rank_environment.h"
#include "tessera/error.h"
#include "util/log.h"

namespace tessera {
namespace {

struct BackendName {
  const char* name;
  Backend backend;
};
constexpr BackendName kBackendNames[] = {{"auto", Backend::kAuto},
                                         {"single", Backend::kSingle},
                                         {"shm", Backend::kShm},
                                         {"gloo", Backend::kGloo},
                                         {"nccl", Backend::kNccl}};

Backend chosen_backend(const RuntimeOptions& options) {
  const char* text = std::getenv("TESSERA_BACKEND");
  if (text == nullptr || *text == '\0') return options.backend();
  for (const BackendName& entry : kBackendNames) {
    if (std::string(text) == entry.name) return entry.backend;
  }
  throw UsageError("environment variable TESSERA_BACKEND=\"" + std::string(text) +
                   "\" is not one of auto, single, shm, gloo, nccl");
}

std::chrono::milliseconds chosen_timeout(const RuntimeOptions& options) {
  const char* text = std::getenv("TESSERA_TIMEOUT_SECONDS");
  if (text == nullptr || *text == '\0') return options.timeout();
  const std::string value(text);
  int64_t seconds = 0;
  const auto [stop, error] = std::from_chars(value.data(), value.data() + value.size(), seconds);
  if (error != std::errc() || stop != value.data() + value.size() || seconds < 1 || seconds > 1000000) {
    throw UsageError("environment variable TESSERA_TIMEOUT_SECONDS=\"" + value + "\" is not a number of seconds of at least 1");
  }
  return std::chrono::seconds(seconds);
}

enum class DeviceWish { kAuto, kCpu, kCuda };

DeviceWish chosen_device(Backend backend) {
  const char* text = std::getenv("TESSERA_DEVICE");
  const std::string value = text == nullptr || *text == '\0' ? "auto" : text;
  if (value != "auto" && value != "cpu" && value != "cuda") {
    throw UsageError("environment variable TESSERA_DEVICE=\"" + value + "\" is not one of auto, cpu, cuda");
  }
  if (backend == Backend::kNccl && value == "cpu") throw UsageError("backend nccl needs CUDA devices, but TESSERA_DEVICE is cpu");
  if (backend == Backend::kShm && value == "cuda") throw UsageError("backend shm is for the CPU, but TESSERA_DEVICE is cuda");
  if (value == "cuda" || backend == Backend::kNccl) return DeviceWish::kCuda;
  // Gloo and shared memory serve the CPU unless CUDA is asked for.
  return value == "cpu" || backend == Backend::kShm || backend == Backend::kGloo ? DeviceWish::kCpu : DeviceWish::kAuto;
}

struct Connection {
  std::shared_ptr<comm::Communicator> communicator;
  torch::Device device{torch::kCPU};
};

// This rank's CUDA device, or in `error` why it has none; nothing is loaded yet.
comm::CudaPlace find_place(const comm::RankEnvironment& environment, bool exclusive) {
  comm::CudaPlace out;
  const comm::CudaDevices devices = comm::find_cuda_devices();
  out.device_count = devices.count();
  out.local_world_size = environment.local_world_size;
  out.error = devices.reason;
  if (!out.usable()) return out;
  const comm::DeviceChoice choice =
      exclusive ? comm::choose_device(environment.local_rank, environment.local_world_size, devices.count())
                : comm::choose_shared_device(environment.local_rank, devices.count());
  out.error = choice.error;
  if (!out.usable()) return out;
  out.index = choice.index;
  out.uuid = devices.uuids[static_cast<size_t>(choice.index)];
  return out;
}

struct CudaSide {
  comm::MakeNcclGroup* make_group = nullptr;  // null: the ranks use the CPU
  torch::Device device{torch::kCPU};
};

// All ranks use CUDA or none does. Throws where CUDA was asked for and cannot be had.
CudaSide agree_on_cuda(DeviceWish wish, bool exclusive, const comm::StorePtr& store,
                       const comm::RankEnvironment& environment, std::chrono::milliseconds timeout) {
  const auto exchange = [&](const char* name, const std::string& value) {
    return comm::store_all_gather(*store, name, environment.rank, environment.world_size, value, timeout);
  };
  const comm::CudaPlace place = find_place(environment, exclusive);
  std::vector<comm::CudaPlace> places;
  for (const std::string& text : exchange("cuda-place", comm::encode(place))) places.push_back(comm::decode_cuda_place(text));
  std::string problem = comm::agree_on_devices(places, exclusive);
  CudaSide out;
  if (problem.empty()) {
    std::string error;
    try {
      out.make_group = comm::load_nccl_library(comm::find_nccl_library());
      comm::check_torch_sees_cuda();
    } catch (const Error& failure) {
      error = failure.what();
    }
    problem = comm::first_error(exchange("cuda-loaded", error));
  }
  if (problem.empty()) {
    out.device = torch::Device(torch::kCUDA, static_cast<c10::DeviceIndex>(place.index));
    return out;
  }
  if (wish == DeviceWish::kCuda) {
    throw UsageError("CUDA cannot be used (TESSERA_BACKEND=shm or gloo trains on the CPU): " + problem);
  }
  const bool some = std::any_of(places.begin(), places.end(), [](const auto& other) { return other.device_count > 0; });
  if (some) log::warning_rank0("using the CPU, not CUDA (TESSERA_DEVICE=cuda insists): " + problem);
  return {};
}

Connection connect_on_cpu(Backend backend, const comm::StorePtr& store, const comm::RankEnvironment& environment,
                          std::chrono::milliseconds timeout) {
  if (backend == Backend::kGloo) return {comm::make_gloo(store, environment, timeout)};
  std::string reason;
  if (environment.local_world_size != environment.world_size) {
    reason = "the ranks are on several hosts";
  } else if (auto shm = comm::make_shm(store, environment, timeout, reason)) {
    // Where rank 0 hosts the store, it ends with this function: by then all must have read it.
    shm->barrier();
    return {std::move(shm)};
  }
  if (backend == Backend::kShm) throw CommError("backend shm cannot be used: " + reason);
  log::info_rank0("shared memory is not available (" + reason + "); using gloo");
  return {comm::make_gloo(store, environment, timeout)};
}

Connection connect_on_cuda(Backend backend, const CudaSide& cuda, const comm::StorePtr& store,
                           const comm::RankEnvironment& environment, std::chrono::milliseconds timeout) {
  const torch::Device device = cuda.device;
  c10::impl::getDeviceGuardImpl(c10::kCUDA)->setDevice(device);
  const bool alone = environment.world_size == 1;
  if (backend == Backend::kSingle || (backend == Backend::kAuto && alone)) return {comm::make_single(timeout), device};
  if (backend == Backend::kGloo) return {comm::make_gloo(store, environment, timeout), device};
  return {comm::make_nccl(cuda.make_group, store, environment, device, timeout), device};
}

Connection connect(Backend backend, const comm::RankEnvironment& environment, std::chrono::milliseconds timeout) {
  const bool alone = environment.world_size == 1;
  if (backend == Backend::kSingle && !alone) {
    throw UsageError("backend single has no communication, but WORLD_SIZE is " + std::to_string(environment.world_size));
  }
  const DeviceWish wish = chosen_device(backend);
  comm::StorePtr store;
  if (alone) {
    store = comm::make_private_store();
  } else {
    store = comm::connect_store(environment, timeout);
    comm::store_all_gather(*store, "arrived", environment.rank, environment.world_size, "1", timeout);
  }
  if (wish != DeviceWish::kCpu) {
    const bool exclusive = backend != Backend::kGloo;  // NCCL wants a device for each rank
    const CudaSide cuda = agree_on_cuda(wish, exclusive, store, environment, timeout);
    if (cuda.make_group != nullptr) return connect_on_cuda(backend, cuda, store, environment, timeout);
  }
  if (alone && (backend == Backend::kSingle || backend == Backend::kAuto)) return {comm::make_single(timeout)};
  return connect_on_cpu(backend, store, environment, timeout);
}

}  // namespace

int Mesh::rank() const { return communicator_->rank(); }
int Mesh::world_size() const { return communicator_->world_size(); }

struct Runtime::State {
  comm::RankEnvironment environment;
  std::shared_ptr<comm::Communicator> communicator;
  Mesh mesh;

  State(comm::RankEnvironment place, const Connection& connection)
      : environment(std::move(place)), communicator(connection.communicator), mesh(communicator, connection.device) {}
  ~State() { communicator->shutdown(); }
};

Runtime::Runtime(std::shared_ptr<State> state) : state_(std::move(state)) {}
Runtime::~Runtime() = default;

Runtime Runtime::from_environment(const RuntimeOptions& options) {
  const comm::RankEnvironment environment = comm::read_rank_environment();
  log::set_rank(environment.rank, environment.world_size);
  return Runtime(std::make_shared<State>(environment, connect(chosen_backend(options), environment, chosen_timeout(options))));
}

int Runtime::rank() const { return state_->environment.rank; }
int Runtime::world_size() const { return state_->environment.world_size; }
int Runtime::local_rank() const { return state_->environment.local_rank; }
int Runtime::local_world_size() const { return state_->environment.local_world_size; }
torch::Device Runtime::device() const { return state_->mesh.device(); }
std::string Runtime::backend_name() const { return std::string(state_->communicator->name()); }
const Mesh& Runtime::mesh() const { return state_->mesh; }

void Runtime::barrier() const { state_->communicator->barrier(); }

bool Runtime::any(bool flag) const {
  for (const std::string& peer : state_->communicator->exchange_header(flag ? "1" : "0")) {
    if (peer == "1") return true;
  }
  return false;
}

double Runtime::sum(double value) const {
  torch::Tensor tensor = torch::full({1}, value, torch::kFloat64);
  state_->communicator->all_reduce(tensor, comm::ReduceOp::kSum);
  return tensor.item<double>();
}

std::vector<std::string> Runtime::all_gather_bytes(const std::string& bytes) const {
  return state_->communicator->all_gather_bytes(bytes);
}

}  // namespace tessera
