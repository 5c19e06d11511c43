// Who this process is among its peers, which device it uses, and how it talks to them.
//
// A program started by tessera-run, torchrun, mpirun or srun finds its rank in the environment; a
// program started directly is world size 1. Every member that is marked [collective] must be called
// by all ranks, in the same order.
//
// Threads: use a Runtime from one thread at a time; copies share one connection.
// Cost: start-up opens one store connection and one process group (2 to 40 ms on one host).
// Errors: UsageError for a contradictory environment (names the variable), TimeoutError for a rank
// that never arrives (names it), CommError when a peer died.
#pragma once

#include <torch/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tessera {

namespace comm {
class Communicator;
}

enum class Backend {
  kAuto,    // nccl where each rank has a CUDA device; shm when all ranks share a host; else gloo;
            // single at world 1
  kSingle,  // world size 1, no communication
  kShm,     // shared memory of one host, CPU
  kGloo,    // TCP, CPU
  kNccl,    // CUDA, one device a rank; needs the tessera_nccl library
};

class RuntimeOptions {
 public:
  // Overridden by TESSERA_BACKEND=auto|single|shm|gloo|nccl.
  RuntimeOptions& backend(Backend value) { backend_ = value; return *this; }
  Backend backend() const { return backend_; }
  // Deadline of every wait for a peer. Overridden by TESSERA_TIMEOUT_SECONDS.
  RuntimeOptions& timeout(std::chrono::milliseconds value) { timeout_ = value; return *this; }
  std::chrono::milliseconds timeout() const { return timeout_; }

 private:
  Backend backend_ = Backend::kAuto;
  std::chrono::milliseconds timeout_{std::chrono::minutes(5)};
};

// The ranks over which parameters are sharded. Cheap to copy.
class Mesh {
 public:
  Mesh(std::shared_ptr<comm::Communicator> communicator, torch::Device device)
      : communicator_(std::move(communicator)), device_(device) {}
  int rank() const;
  int world_size() const;
  torch::Device device() const { return device_; }
  const std::shared_ptr<comm::Communicator>& communicator() const { return communicator_; }

 private:
  std::shared_ptr<comm::Communicator> communicator_;
  torch::Device device_;
};

class Runtime {
 public:
  // Reads RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT (or the variables
  // of Open MPI, PMI and Slurm, given MASTER_ADDR); none of them set means world size 1. [collective]
  // The device is cuda:LOCAL_RANK where CUDA is used, which TESSERA_DEVICE=cpu|cuda forbids or demands.
  // With CUDA, create the Runtime before anything else asks LibTorch for CUDA, as torch::manual_seed
  // does: it loads LibTorch's CUDA part.
  static Runtime from_environment(const RuntimeOptions& options = {});
  ~Runtime();
  Runtime(const Runtime&) = default;
  Runtime& operator=(const Runtime&) = default;

  int rank() const;
  int world_size() const;
  int local_rank() const;
  int local_world_size() const;
  torch::Device device() const;
  std::string backend_name() const;
  const Mesh& mesh() const;

  void barrier() const;                                                        // [collective]
  bool any(bool flag) const;  // true on all ranks when true on one              [collective]
  double sum(double value) const;                                              // [collective]
  // Every rank's bytes, in rank order.                                           [collective]
  std::vector<std::string> all_gather_bytes(const std::string& bytes) const;

 private:
  struct State;
  explicit Runtime(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace tessera
