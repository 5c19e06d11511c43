// Stands in for tessera_nccl where no CUDA is: the same entry point, a group that notes its calls
// in the store that it was given. Compiled a second time as a library of another interface version.
#include <string>

#include "comm/nccl_group.h"

namespace tessera::comm {
namespace {

class NotingGroup final : public NcclGroup {
 public:
  explicit NotingGroup(StorePtr store) : store_(std::move(store)) {}
  void all_gather(at::Tensor, const at::Tensor&) override { note("all_gather"); }
  void reduce_scatter(at::Tensor, at::Tensor) override { note("reduce_scatter"); }
  void all_reduce(at::Tensor, ReduceOp) override { note("all_reduce"); }
  void broadcast(at::Tensor, int) override {
    throw std::runtime_error("unhandled system error\nbacktrace");
  }
  void barrier() override { note("barrier"); }
  void shutdown() override { note("shutdown"); }
  void abort() noexcept override { note("abort"); }

 private:
  void note(const std::string& call) { store_->set("calls", calls_ += call + " "); }
  StorePtr store_;
  std::string calls_;
};

}  // namespace
}  // namespace tessera::comm

extern "C" __attribute__((visibility("default"))) tessera::comm::NcclGroup* tessera_make_nccl_group(
    int interface_version, const tessera::comm::NcclGroupOptions& options) {
  if (interface_version != FAKE_INTERFACE_VERSION)
    throw std::runtime_error("another interface version");
  return new tessera::comm::NotingGroup(options.store);
}
