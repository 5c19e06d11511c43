#include "tessera/runtime.h"

#include <torch/torch.h>

#include <charconv>
#include <cstdlib>

#include "comm/backends.h"
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

std::shared_ptr<comm::Communicator> connect(Backend backend, const comm::RankEnvironment& environment,
                                            std::chrono::milliseconds timeout) {
  const bool alone = environment.world_size == 1;
  if (backend == Backend::kSingle && !alone) {
    throw UsageError("backend single has no communication, but WORLD_SIZE is " + std::to_string(environment.world_size));
  }
  if (backend == Backend::kNccl) {
    throw UsageError("backend nccl needs the tessera_nccl library, which this build does not have (TESSERA_WITH_NCCL)");
  }
  if (alone && (backend == Backend::kSingle || backend == Backend::kAuto)) return comm::make_single(timeout);

  comm::RankEnvironment place = environment;
  comm::StorePtr store;
  if (alone) {
    store = comm::make_private_store();
  } else {
    store = comm::connect_store(environment, timeout);
    comm::store_all_gather(*store, "arrived", environment.rank, environment.world_size, "1", timeout);
  }
  if (backend == Backend::kGloo) return comm::make_gloo(store, place, timeout);
  std::string reason;
  if (environment.local_world_size != environment.world_size) {
    reason = "the ranks are on several hosts";
  } else if (auto shm = comm::make_shm(store, place, timeout, reason)) {
    // Where rank 0 hosts the store, it ends with this function: by then all must have read it.
    shm->barrier();
    return shm;
  }
  if (backend == Backend::kShm) throw CommError("backend shm cannot be used: " + reason);
  log::info_rank0("shared memory is not available (" + reason + "); using gloo");
  return comm::make_gloo(store, place, timeout);
}

}  // namespace

int Mesh::rank() const { return communicator_->rank(); }
int Mesh::world_size() const { return communicator_->world_size(); }

struct Runtime::State {
  comm::RankEnvironment environment;
  std::shared_ptr<comm::Communicator> communicator;
  Mesh mesh;

  State(comm::RankEnvironment place, std::shared_ptr<comm::Communicator> connection)
      : environment(std::move(place)), communicator(std::move(connection)), mesh(communicator, torch::kCPU) {}
  ~State() { communicator->shutdown(); }
};

Runtime::Runtime(std::shared_ptr<State> state) : state_(std::move(state)) {}
Runtime::~Runtime() = default;

Runtime Runtime::from_environment(const RuntimeOptions& options) {
  const comm::RankEnvironment environment = comm::read_rank_environment();
  log::set_rank(environment.rank, environment.world_size);
  auto communicator = connect(chosen_backend(options), environment, chosen_timeout(options));
  return Runtime(std::make_shared<State>(environment, std::move(communicator)));
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
