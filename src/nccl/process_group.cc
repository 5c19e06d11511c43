// c10d's ProcessGroupNCCL as the NcclGroup of the program that loads this library. The only file of
// the project that sees nccl.h and CUDA headers.
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>

#include "comm/nccl_group.h"

// ProcessGroupNCCL::Options holds an ncclConfig_t by value, so both sides must mean the same one.
static_assert(NCCL_VERSION_CODE == TESSERA_NCCL_VERSION_CODE,
              "nccl.h is not of the version that LibTorch was built with");

namespace tessera::comm {
namespace {

using Group = c10d::ProcessGroupNCCL;

// NCCL knows no 16-bit integers, and sums half types in themselves.
at::ScalarType wire_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf:
    case at::kBFloat16:
      return at::kFloat;
    case at::kShort:
      return at::kInt;
    default:
      return dtype;
  }
}

// NCCL has no complex numbers; their sums are those of their parts.
at::Tensor as_real(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor) : tensor;
}

// Moving needs no arithmetic, so that every dtype can be moved.
at::Tensor as_bytes(const at::Tensor& tensor) {
  const at::Tensor flat = as_real(tensor).view({-1});
  return flat.view(at::kByte);
}

c10d::ReduceOp::RedOpType c10d_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
    case ReduceOp::kMin:
      return c10d::ReduceOp::MIN;
    default:
      return c10d::ReduceOp::SUM;
  }
}

struct Scope {
  explicit Scope(c10::Device device) : guard(device) {}
  const c10::cuda::CUDAGuard guard;
  const at::NoGradGuard no_grad;
};

class ProcessGroup final : public NcclGroup {
 public:
  explicit ProcessGroup(const NcclGroupOptions& request)
      : device_(c10::kCUDA, static_cast<c10::DeviceIndex>(request.device_index)) {
    const Scope scope(device_);
    auto options = Group::Options::create();
    options->timeout = request.timeout;
    options->group_name = "tessera";
    group_ = c10::make_intrusive<Group>(request.store, request.rank, request.world_size, options);
    group_->setBoundDeviceId(device_);
    // Connects now, so that what is wrong shows here and not inside of the first training step.
    group_->eagerConnectSingleDevice(device_);
  }

  void all_gather(at::Tensor out, const at::Tensor& input) override {
    if (input.numel() == 0) return;
    const Scope scope(device_);
    at::Tensor target = as_bytes(out);
    at::Tensor source = as_bytes(input.contiguous());
    finish(group_->_allgather_base(target, source));
  }

  void reduce_scatter(at::Tensor out, at::Tensor input) override {
    if (out.numel() == 0) return;
    const Scope scope(device_);
    const at::ScalarType dtype = wire_dtype(out.scalar_type());
    at::Tensor source = as_real(input.contiguous()).view({-1}).to(dtype);
    if (dtype == out.scalar_type() && out.is_contiguous()) {
      at::Tensor target = as_real(out).view({-1});
      finish(group_->_reduce_scatter_base(target, source));
      return;
    }
    at::Tensor target = at::empty({as_real(out).numel()}, source.options());
    finish(group_->_reduce_scatter_base(target, source));
    as_real(out).copy_(target.view(as_real(out).sizes()));
  }

  void all_reduce(at::Tensor tensor, ReduceOp op) override {
    if (tensor.numel() == 0) return;
    const Scope scope(device_);
    c10d::AllreduceOptions options;
    options.reduceOp = c10d_op(op);
    const at::ScalarType dtype = wire_dtype(tensor.scalar_type());
    const bool in_place = dtype == tensor.scalar_type() && tensor.is_contiguous();
    std::vector<at::Tensor> list{in_place ? as_real(tensor)
                                          : as_real(tensor).to(dtype).contiguous()};
    finish(group_->allreduce(list, options));
    if (!in_place) as_real(tensor).copy_(list[0]);
  }

  void broadcast(at::Tensor tensor, int root) override {
    if (tensor.numel() == 0) return;
    const Scope scope(device_);
    c10d::BroadcastOptions options;
    options.rootRank = root;
    const at::Tensor whole = tensor.contiguous();
    std::vector<at::Tensor> list{as_bytes(whole)};
    finish(group_->broadcast(list, options));
    if (!whole.is_same(tensor)) tensor.copy_(whole);
  }

  void barrier() override {
    const Scope scope(device_);
    c10d::BarrierOptions options;
    options.device = device_;
    finish(group_->barrier(options));
  }

  void shutdown() override {
    const Scope scope(device_);
    c10::cuda::device_synchronize();
    group_->shutdown();
  }

  void abort() noexcept override {
    try {
      group_->abort();
    } catch (...) {  // the process is on its way out, with an error that was reported already
    }
  }

 private:
  // The current stream waits for the collective. Until then the Work holds the tensors, and work
  // that reuses their memory afterwards is queued behind that wait.
  static void finish(const c10::intrusive_ptr<c10d::Work>& work) { work->wait(); }

  const c10::Device device_;
  c10::intrusive_ptr<Group> group_;
};

void check_versions(int interface_version) {
  TORCH_CHECK(interface_version == kNcclInterfaceVersion, "the program speaks version ",
              interface_version, " of the interface of tessera_nccl, this library version ",
              kNcclInterfaceVersion, ": build both from the same sources");
  const int loaded = c10d::getNcclVersionNumber();
  TORCH_CHECK(loaded >= NCCL_VERSION_CODE, "the NCCL library that was loaded is version ", loaded,
              ", but version ", NCCL_VERSION_CODE,
              " or newer is needed: is an old libnccl.so.2 in LD_LIBRARY_PATH or LD_PRELOAD?");
}

}  // namespace
}  // namespace tessera::comm

extern "C" __attribute__((visibility("default"))) tessera::comm::NcclGroup* tessera_make_nccl_group(
    int interface_version, const tessera::comm::NcclGroupOptions& options) {
  tessera::comm::check_versions(interface_version);
  return new tessera::comm::ProcessGroup(options);
}
