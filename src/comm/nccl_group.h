// What the library tessera_nccl exports: collectives on the tensors of one CUDA device.
//
// This header is all that the two sides share; it needs no CUDA. The library is the only place that
// sees CUDA and NCCL, so that a program without a GPU needs neither.
// Every collective runs on a stream of the group: it starts after the work that the caller's
// current stream holds, and the current stream waits for it; the host does not. Memory of the
// arguments may be reused at once by work on the current stream. Sums do not run in rank order:
// NCCL chooses the order, the same on every rank and in every run of one configuration (devices,
// ranks, NCCL version, algorithm). Half types are summed in fp32. Threads: one thread at a time.
// Errors: std::exception with a text for a person.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>

#include "comm/communicator.h"
#include "comm/store.h"

namespace tessera::comm {

class NcclGroup {
 public:
  NcclGroup() = default;
  virtual ~NcclGroup() = default;
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  // As in Communicator.
  virtual void all_gather(at::Tensor out, const at::Tensor& input) = 0;
  virtual void reduce_scatter(at::Tensor out, at::Tensor input) = 0;
  virtual void all_reduce(at::Tensor tensor, ReduceOp op) = 0;
  virtual void broadcast(at::Tensor tensor, int root) = 0;
  // Blocks the host until the device work of every rank before it is done.
  virtual void barrier() = 0;
  // Ordered end; every rank calls it. After a failure, abort() instead: it waits for nobody.
  virtual void shutdown() = 0;
  virtual void abort() noexcept = 0;
};

struct NcclGroupOptions {
  StorePtr store;  // with a prefix of its own for each group
  int rank = 0;
  int world_size = 1;
  int device_index = 0;
  std::chrono::milliseconds timeout{0};
};

// Changes whenever something above does; the library refuses another one.
inline constexpr int kNcclInterfaceVersion = 1;
// The library's only symbol. The caller owns the result.
inline constexpr char kMakeNcclGroupName[] = "tessera_make_nccl_group";
using MakeNcclGroup = NcclGroup*(int interface_version, const NcclGroupOptions& options);

}  // namespace tessera::comm
