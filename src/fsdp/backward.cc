// What happens to gradients: hooks, the order of reductions, and the end of a backward.
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstring>

#include "fsdp/engine.h"
#include "fsdp/header.h"
#include "fsdp/keyed_tensor.h"
#include "tessera/error.h"

namespace tessera::fsdp {
namespace {

class AccumulatedHook final : public torch::autograd::PostAccumulateGradHook {
 public:
  AccumulatedHook(std::weak_ptr<Engine> engine, Param& param) : engine_(std::move(engine)), param_(param) {}
  void operator()(const torch::autograd::Variable&) override {
    if (auto engine = engine_.lock()) engine->on_accumulated(param_);
  }

 private:
  std::weak_ptr<Engine> engine_;
  Param& param_;
};

}  // namespace

void Engine::register_gradient_hooks(Param& param) {
  param.hooked = true;
  Param* raw = &param;
  // The tensor hook runs before accumulation, also where no operator of the backward touches the
  // parameter (an embedding, a first Linear).
  param.full.register_hook([weak = weak_from_this(), raw](const torch::Tensor& gradient) {
    auto engine = weak.lock();
    if (!engine) {
      throw UsageError("a backward reached a sharded parameter whose tessera::Sharded no longer exists");
    }
    // An undefined gradient (double backward) accumulates nothing.
    if (gradient.defined()) engine->on_gradient(*raw);
    return gradient;
  });
  torch::autograd::impl::set_post_acc_grad_hooks(param.full, std::make_unique<AccumulatedHook>(weak_from_this(), param));
}

void Engine::enter_backward() {
  if (backward_active_) return;
  backward_active_ = true;
  reduce_cursor_ = 0;
  completion_order_.clear();
  for (auto& unit : units_) {
    unit->reduced = false;
    unit->expected = -1;
  }
  torch::autograd::Engine::get_default_engine().queue_callback([weak = weak_from_this()] {
    if (auto engine = weak.lock()) engine->finish_backward();
  });
}

// A backward that threw never runs its final callback.
void Engine::recover_from_failed_backward() {
  backward_active_ = false;
  for (auto& unit : units_) {
    for (Param* param : unit->params) {
      param->grad_arrived = false;
      if (param->buffer->has_grads()) poison(*param);
    }
    unit->arrived = 0;
    release_gradients(*unit);
  }
}

void Engine::on_gradient(Param& param) {
  enter_backward();
  if (!param.grad_installed) install_gradient(param);
}

void Engine::install_gradient(Param& param) {
  torch::NoGradGuard no_grad;
  FlatBuffer& buffer = *param.buffer;
  if (!buffer.grad_full.defined()) acquire_gradients(*buffer.unit);
  torch::Tensor view = storage_tensor(buffer.grad_full.storage(), buffer.grad_full.storage_offset() + param.offset, param.shape,
                                      buffer.reduce_dtype(), false);
  view.zero_();
  param.full.mutable_grad() = view;
  param.grad_installed = true;
}

void Engine::on_accumulated(Param& param) {
  if (!param.grad_installed) return;
  torch::NoGradGuard no_grad;
  FlatBuffer& buffer = *param.buffer;
  Unit& unit = *buffer.unit;
  const torch::Tensor& grad = param.full.grad();
  // With create_graph the sum is a new tensor.
  if (grad.storage().unsafeGetStorageImpl() != buffer.grad_full.storage().unsafeGetStorageImpl()) {
    const torch::Tensor sum = grad.detach();
    install_gradient(param);
    param.full.mutable_grad().copy_(sum);
  }
  if (!param.grad_arrived) {
    param.grad_arrived = true;
    ++unit.arrived;
  }
  if (unit.expected < 0) {
    unit.expected = static_cast<int>(std::count_if(unit.params.begin(), unit.params.end(),
                                                   [](const Param* p) { return p->full.requires_grad(); }));
  }
  if (unit.complete() && !unit.reduced) {
    completion_order_.push_back(unit.index);
    reduce_in_turn();
  }
}

// Reductions are collective, so all ranks make them in one order, whatever the order in which their
// gradients arrive. A unit that is complete early waits for its turn.
void Engine::reduce_in_turn() {
  while (reduce_cursor_ < reduce_order_.size()) {
    Unit& unit = *units_[static_cast<size_t>(reduce_order_[reduce_cursor_])];
    if (!unit.complete()) return;
    reduce(unit);
    unit.reduced = true;
    ++reduce_cursor_;
  }
}

void Engine::finish_backward() {
  torch::NoGradGuard no_grad;
  for (; reduce_cursor_ < reduce_order_.size(); ++reduce_cursor_) {
    Unit& unit = *units_[static_cast<size_t>(reduce_order_[reduce_cursor_])];
    reduce(unit);
    unit.reduced = true;
  }
  reduce_late_gradients();
  if (!order_is_learned_) learn_order();
  for (auto& param : params_) {
    if (param->buffer->has_grads()) poison(*param);
  }
  for (auto& unit : units_) {
    if (unit->pins == 0) reshard(*unit);
  }
  std::erase_if(current_, [](const Unit* unit) { return !unit->live; });
  backward_active_ = false;
  // Kernels that write past the dispatcher come after a backward.
  pass_guard();
}

// Gradients that came after their unit's turn (a module used again by a recompute). How many rounds
// there are can differ between ranks, so each round is agreed.
void Engine::reduce_late_gradients() {
  for (;;) {
    Header header{Phase::kLate, -1};
    header.has_late = 0;
    for (const auto& unit : units_) {
      if (unit->arrived > 0 && header.has_late == 0) header.has_late = static_cast<uint32_t>(unit->index) + 1;
    }
    uint32_t next = 0;
    for (const Header& peer : announce(header)) {
      if (peer.has_late != 0 && (next == 0 || peer.has_late < next)) next = peer.has_late;
    }
    if (next == 0) return;
    reduce(*units_[next - 1]);
  }
}

// After the first backward every rank reduces in the order in which rank 0's units were complete.
void Engine::learn_order() {
  order_is_learned_ = true;
  if (units_.size() == 1) return;
  std::vector<int> order = completion_order_;
  for (int index : reduce_order_) {
    if (std::find(order.begin(), order.end(), index) == order.end()) order.push_back(index);
  }
  announce({Phase::kOrder, -1});
  std::string bytes(order.size() * sizeof(int), '\0');
  std::memcpy(bytes.data(), order.data(), bytes.size());
  const std::string first = comm_->all_gather_bytes(bytes)[0];
  if (first.size() != bytes.size()) throw CommError("rank 0 shards another number of units");
  std::memcpy(reduce_order_.data(), first.data(), first.size());
}

void Engine::poison(Param& param) {
  param.full.mutable_grad() = poison_like(param.full);
  param.grad_installed = false;
}

}  // namespace tessera::fsdp
