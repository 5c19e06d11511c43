// The communicator of ranks that train on CUDA devices: tensors on the device go over NCCL, tensors
// in host memory and control messages over Gloo.
//
// Differs from communicator.h in one thing: sums of device tensors run in an order that NCCL
// chooses, the same on every rank, but not the rank order of the other backends. Who does not take
// part is named by the control messages, which precede every device collective of the sharding
// engine and have the deadline. A rank that is lost inside of a device collective ends its peers
// through NCCL's watchdog (SIGABRT after the deadline), which launchers report. Threads: one thread
// at a time. Cost: nothing beyond the group's; barrier() blocks the host.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "comm/nccl_group.h"
#include "comm/store.h"

namespace tessera::comm {

class NcclCommunicator final : public Communicator {
 public:
  // `store` is for the end only: the ranks meet there before they take the groups down.
  NcclCommunicator(std::unique_ptr<NcclGroup> group, std::shared_ptr<Communicator> control,
                   StorePtr store, torch::Device device);
  ~NcclCommunicator() override;

  std::string_view name() const override { return "nccl"; }
  void all_gather(torch::Tensor out, const torch::Tensor& input) override;
  void reduce_scatter(torch::Tensor out, torch::Tensor input) override;
  void all_reduce(torch::Tensor tensor, ReduceOp op) override;
  void broadcast(torch::Tensor tensor, int root) override;
  void barrier() override;

  // Waits for the peers, at most kEndDeadline, then ends NCCL and after it Gloo. After a failure,
  // or while an exception unwinds the stack, nobody is waited for. Never throws.
  void shutdown() override;
  static constexpr std::chrono::seconds kEndDeadline{20};

 private:
  template <typename Function>
  void on_device(const char* operation, Function function);
  template <typename Function>
  void on_host(Function function);
  bool is_on_device(const torch::Tensor& tensor) const;
  bool all_arrived_at_end();

  std::unique_ptr<NcclGroup> group_;
  std::shared_ptr<Communicator> control_;
  StorePtr store_;
  const torch::Device device_;
  int64_t sequence_ = 0;
  bool failed_ = false;
};

}  // namespace tessera::comm
