#include "comm/nccl_communicator.h"

#include <torch/torch.h>

#include <algorithm>
#include <exception>

#include "tessera/error.h"
#include "util/first_line.h"
#include "util/log.h"

namespace tessera::comm {

NcclCommunicator::NcclCommunicator(std::unique_ptr<NcclGroup> group,
                                   std::shared_ptr<Communicator> control, StorePtr store,
                                   torch::Device device)
    : Communicator(control->rank(), control->world_size(), control->timeout()),
      group_(std::move(group)),
      control_(std::move(control)),
      store_(std::move(store)),
      device_(device) {}

NcclCommunicator::~NcclCommunicator() { shutdown(); }

bool NcclCommunicator::is_on_device(const torch::Tensor& tensor) const {
  if (tensor.device() == device_) return true;
  TORCH_CHECK(tensor.device().is_cpu(), "rank ", rank(), " communicates from ", device_,
              ", not from ", tensor.device(), ": move the tensor to runtime.device()");
  return false;
}

template <typename Function>
void NcclCommunicator::on_device(const char* operation, Function function) {
  if (!group_)
    throw CommError("rank " + std::to_string(rank()) + ": " + operation +
                    " after the end of communication");
  ++sequence_;
  try {
    function();
  } catch (const std::exception& error) {
    failed_ = true;
    throw CommError("rank " + std::to_string(rank()) + ": " + operation + " number " +
                    std::to_string(sequence_) + " over nccl failed: " + first_line(error.what()));
  }
}

template <typename Function>
void NcclCommunicator::on_host(Function function) {
  try {
    function();
  } catch (const CommError&) {
    failed_ = true;
    throw;
  }
}

void NcclCommunicator::all_gather(torch::Tensor out, const torch::Tensor& input) {
  if (!is_on_device(out)) return on_host([&] { control_->all_gather(out, input); });
  on_device("all-gather", [&] { group_->all_gather(out, input); });
}

void NcclCommunicator::reduce_scatter(torch::Tensor out, torch::Tensor input) {
  if (!is_on_device(out)) return on_host([&] { control_->reduce_scatter(out, input); });
  on_device("reduce-scatter", [&] { group_->reduce_scatter(out, input); });
}

void NcclCommunicator::all_reduce(torch::Tensor tensor, ReduceOp op) {
  if (!is_on_device(tensor)) return on_host([&] { control_->all_reduce(tensor, op); });
  on_device("all-reduce", [&] { group_->all_reduce(tensor, op); });
}

void NcclCommunicator::broadcast(torch::Tensor tensor, int root) {
  if (!is_on_device(tensor)) return on_host([&] { control_->broadcast(tensor, root); });
  on_device("broadcast", [&] { group_->broadcast(tensor, root); });
}

// First over the host, where a rank that does not come is named within the deadline.
void NcclCommunicator::barrier() {
  on_host([&] { control_->barrier(); });
  on_device("barrier", [&] { group_->barrier(); });
}

bool NcclCommunicator::all_arrived_at_end() {
  if (failed_ || std::uncaught_exceptions() > 0) return false;
  try {
    const auto deadline = std::min<std::chrono::milliseconds>(timeout(), kEndDeadline);
    store_all_gather(*store_, "nccl-end", rank(), world_size(), "1", deadline);
    // Whoever hosts the store must not end before the others have read it.
    control_->barrier();
    return true;
  } catch (const std::exception& error) {
    log::warning("ending without the other ranks: " + first_line(error.what()));
    return false;
  }
}

void NcclCommunicator::shutdown() {
  if (!group_) return;
  const std::unique_ptr<NcclGroup> group = std::move(group_);
  if (all_arrived_at_end()) {
    try {
      group->shutdown();
    } catch (const std::exception& error) {
      log::warning("nccl did not end in order: " + first_line(error.what()));
      group->abort();
    }
  } else {
    group->abort();
  }
  control_->shutdown();
}

}  // namespace tessera::comm
