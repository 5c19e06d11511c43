// The only file that sees ProcessGroupGloo.hpp; compiled with stub Gloo headers in front.
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <ATen/ATen.h>

#include "comm/backends.h"
#include "comm/sum_dtype.h"
#include "tessera/error.h"
#include "util/first_line.h"

namespace tessera::comm {
namespace {

using Group = c10d::ProcessGroupGloo;

// Moving needs no arithmetic: as bytes, every dtype can be moved.
at::Tensor as_bytes(const at::Tensor& contiguous) {
  const at::Tensor real = contiguous.is_complex() ? at::view_as_real(contiguous) : contiguous;
  return real.view({-1}).view(at::kByte);
}

// Gloo moves host memory only: tensors on a device go there and back.
at::Tensor on_host(const at::Tensor& tensor) { return at::empty(tensor.sizes(), tensor.options().device(at::kCPU)); }

class GlooCommunicator final : public Communicator {
 public:
  GlooCommunicator(StorePtr store, c10::intrusive_ptr<Group> group, const RankEnvironment& environment,
                   std::chrono::milliseconds timeout)
      : Communicator(environment.rank, environment.world_size, timeout), store_(std::move(store)), group_(std::move(group)),
        rank0_hosts_store_(environment.world_size > 1 && !environment.store_is_external) {}
  ~GlooCommunicator() override { shutdown(); }

  std::string_view name() const override { return "gloo"; }

  void all_gather(at::Tensor out, const at::Tensor& input) override {
    at::NoGradGuard no_grad;
    if (!out.device().is_cpu()) {
      const at::Tensor host = on_host(out);
      all_gather(host, input.cpu());
      out.copy_(host);
      return;
    }
    const int64_t n = input.numel();
    at::Tensor flat = out.view({-1});
    at::Tensor mine = flat.narrow(0, rank() * n, n);
    if (mine.data_ptr() != input.data_ptr()) mine.copy_(input.reshape({-1}));
    if (n == 0) return;
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    run("all-gather", [&] {
      for (int root = 0; root < world_size(); ++root) {
        std::vector<at::Tensor> slice{as_bytes(flat.narrow(0, root * n, n))};
        c10d::BroadcastOptions options;
        options.rootRank = root;
        works.push_back(group_->broadcast(slice, options));
      }
      for (auto& work : works) work->wait();
    });
  }

  // One all-to-all, then a sum in rank order in the output's dtype (fp32 for half types).
  void reduce_scatter(at::Tensor out, at::Tensor input) override {
    at::NoGradGuard no_grad;
    if (!out.device().is_cpu()) {
      const at::Tensor host = on_host(out);
      reduce_scatter(host, input.cpu());
      out.copy_(host);
      return;
    }
    const int64_t n = out.numel();
    if (n == 0) return;
    at::Tensor received = scratch(input).view({-1});
    run("reduce-scatter", [&] {
      std::vector<int64_t> even;
      at::Tensor source = as_bytes(input.contiguous());
      at::Tensor target = as_bytes(received);
      group_->alltoall_base(target, source, even, even)->wait();
    });
    const at::Tensor rows = received.view({world_size(), n});
    const at::ScalarType dtype = sum_dtype(out.scalar_type());
    const bool in_place = dtype == out.scalar_type();
    at::Tensor sum = in_place ? out.view({-1}) : at::empty({n}, out.options().dtype(dtype));
    sum.copy_(rows[0]);
    for (int r = 1; r < world_size(); ++r) sum.add_(rows[r]);
    if (!in_place) out.view({-1}).copy_(sum);
  }

  void broadcast(at::Tensor tensor, int root) override {
    at::NoGradGuard no_grad;
    if (!tensor.device().is_cpu()) {
      const at::Tensor host = rank() == root ? tensor.cpu() : on_host(tensor);
      broadcast(host, root);
      if (rank() != root) tensor.copy_(host);
      return;
    }
    if (tensor.numel() == 0) return;
    const at::Tensor whole = tensor.contiguous();
    run("broadcast", [&] {
      std::vector<at::Tensor> list{as_bytes(whole)};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      group_->broadcast(list, options)->wait();
    });
    if (!whole.is_same(tensor) && rank() != root) tensor.copy_(whole);
  }

  void shutdown() override {
    if (!group_) return;
    group_.reset();
  }

 private:
  template <typename Function>
  void run(const char* operation, Function function) {
    ++sequence_;
    if (!group_) throw CommError("rank " + std::to_string(rank()) + ": " + operation + " after the end of communication");
    try {
      function();
    } catch (const std::exception& error) {
      fail(operation, error.what());
    }
  }

  // Gloo says that a connection broke, not whose. Every rank that fails posts a note; whoever posts
  // none within a short while is the one to look at.
  [[noreturn]] void fail(const char* operation, const std::string& text) {
    const bool timed_out = text.find("imed out") != std::string::npos;
    std::string silent;
    try {
      const std::string base = "gloo-failed/";
      store_->set(base + std::to_string(rank()), operation);
      for (int r = 0; r < world_size(); ++r) {
        if (r == rank()) continue;
        try {
          store_->wait({base + std::to_string(r)}, std::chrono::milliseconds(500));
        } catch (const std::exception&) {
          silent += (silent.empty() ? "" : ", ") + std::to_string(r);
        }
      }
    } catch (const std::exception&) {
      silent = rank0_hosts_store_ ? "0, which hosts the store" : "unknown (the store is gone too)";
    }
    const std::string message = "rank " + std::to_string(rank()) + ": " + operation + " number " +
                                std::to_string(sequence_) + " over gloo failed; no word from rank " +
                                (silent.empty() ? "(all reported the failure)" : silent) + ": " +
                                first_line(text);
    if (timed_out) throw TimeoutError(message);
    throw CommError(message);
  }

  at::Tensor scratch(const at::Tensor& like) {
    const c10::InferenceMode normal(false);  // what is kept must serve training too
    at::Tensor& kept = scratch_[like.scalar_type()];
    if (!kept.defined() || kept.numel() < like.numel()) kept = at::empty({like.numel()}, like.options());
    return kept.narrow(0, 0, like.numel());
  }

  StorePtr store_;
  c10::intrusive_ptr<Group> group_;
  std::map<at::ScalarType, at::Tensor> scratch_;
  const bool rank0_hosts_store_;
  int64_t sequence_ = 0;
};

}  // namespace

std::shared_ptr<Communicator> make_gloo(const StorePtr& store, const RankEnvironment& environment,
                                        std::chrono::milliseconds timeout) {
  auto options = Group::Options::create(timeout);
  try {
    const bool one_host = environment.local_world_size == environment.world_size;
    // On one host the loopback always works, whatever the host's name resolves to.
    if (one_host && std::getenv("GLOO_SOCKET_IFNAME") == nullptr) {
      options->devices.push_back(Group::createDeviceForHostname("127.0.0.1"));
    } else {
      options = Group::Options::create_default(timeout);
    }
    auto prefixed = c10::make_intrusive<c10d::PrefixStore>("gloo", store);
    auto group = c10::make_intrusive<Group>(prefixed, environment.rank, environment.world_size, options);
    return std::make_shared<GlooCommunicator>(store, std::move(group), environment, timeout);
  } catch (const std::exception& error) {
    throw CommError("rank " + std::to_string(environment.rank) +
                    " cannot connect to its peers over gloo: " + first_line(error.what()));
  }
}

}  // namespace tessera::comm
