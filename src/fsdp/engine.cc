#include "fsdp/engine.h"

#include <torch/csrc/autograd/graph_task.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstring>

#include "fsdp/header.h"
#include "fsdp/keyed_tensor.h"
#include "tessera/error.h"

namespace tessera::fsdp {
namespace {

// Freed buffers are kept for the next gather: fresh pages cost more than the gather itself.
constexpr size_t kKeptBuffers = 3;

bool in_backward() { return torch::autograd::get_current_graph_task_id() != -1; }

}  // namespace

int64_t Param::shard_offset(int rank) const {
  return offset + rows.begin * layout::param_shape(shape).row_numel - buffer->segment_numel * rank;
}

Param* FlatBuffer::find(int64_t element) const {
  const auto after = std::upper_bound(params.begin(), params.end(), element,
                                      [](int64_t value, const Param* param) { return value < param->offset; });
  if (after == params.begin()) return nullptr;
  Param* param = *std::prev(after);
  return element < param->offset + std::max<int64_t>(param->numel(), 1) ? param : nullptr;
}

Engine::Engine(torch::nn::Module& module, const Mesh& mesh, const FsdpOptions& options)
    : module_(module), mesh_(mesh), options_(options), comm_(mesh.communicator()),
      memory_(comm_->shared_memory()),
      mapped_(memory_ != nullptr || comm_->name() == "single") {
  link_dispatch();
  if (memory_ != nullptr) slots_ = std::make_unique<GradientSlots>(*memory_);
}

Engine::~Engine() {
  for (auto& buffer : buffers_) {
    if (buffer->storage) unregister_storage(buffer->storage);
    if (buffer->shard.defined()) unregister_storage(buffer->shard.storage());
  }
}

void Engine::pin(Unit& unit) {
  if (in_backward()) {
    enter_backward();
  } else if (backward_active_) {
    recover_from_failed_backward();
  }
  if (!in_scope_) begin_read();
  if (!unit.live || (unit.stale && !unit.private_copy)) gather(unit);
  ++unit.pins;
  if (std::find(current_.begin(), current_.end(), &unit) == current_.end()) current_.push_back(&unit);
}

void Engine::evict_all_but_pinned() {
  const bool keep = !options_.reshard_after_forward() && !in_backward();
  if (keep) return;
  auto kept = std::remove_if(current_.begin(), current_.end(), [&](Unit* unit) {
    if (unit->pins > 0 || unit->is_root) return false;
    reshard(*unit);
    return true;
  });
  current_.erase(kept, current_.end());
}

void Engine::begin_read() {
  if (memory_ != nullptr) memory_->begin_read();
}

void Engine::gather(Unit& unit) {
  if (!mapped_) announce({Phase::kGather, unit.index});
  check_leaves();
  torch::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (FlatBuffer* buffer : unit.buffers) {
    attach(*buffer, /*private_copy=*/false);
    if (mapped_) continue;
    torch::Tensor whole = storage_tensor(buffer->storage, 0, {buffer->numel}, buffer->dtype, false);
    comm_->all_gather(whole, buffer->shard);
  }
  unit.live = true;
  unit.stale = false;
}

// Gives the buffer's storage memory: the shared mapping itself, or a kept block.
void Engine::attach(FlatBuffer& buffer, bool private_copy) {
  c10::StorageImpl* storage = buffer.storage.unsafeGetStorageImpl();
  const size_t bytes = buffer.bytes();
  if (mapped_ && !private_copy) {
    storage->set_data_ptr_noswap(c10::DataPtr(buffer.mapping, mesh_.device()));
    storage->set_nbytes(bytes);
    return;
  }
  if (buffer.unit->live && !mapped_) return;  // stale: refilled in place
  c10::DataPtr memory;
  const auto kept = std::find_if(kept_memory_.begin(), kept_memory_.end(), [&](const KeptMemory& k) { return k.bytes == bytes; });
  if (kept != kept_memory_.end()) {
    memory = std::move(kept->data);
    kept_memory_.erase(kept);
  }
  if (memory.get() == nullptr) {
    const c10::OptionalDeviceGuard guard(mesh_.device());  // an allocator serves the current device
    memory = c10::GetAllocator(mesh_.device().type())->allocate(bytes);
  }
  storage->set_data_ptr_noswap(std::move(memory));
  storage->set_nbytes(bytes);
}

void Engine::detach(FlatBuffer& buffer) {
  c10::StorageImpl* storage = buffer.storage.unsafeGetStorageImpl();
  const bool own_memory = !mapped_ || buffer.unit->private_copy;
  if (own_memory && options_.debug_overwrite_freed() && storage->data() != nullptr) {
    torch::NoGradGuard no_grad;
    storage_tensor(buffer.storage, 0, {static_cast<int64_t>(buffer.bytes())}, torch::kUInt8, false).fill_(0xff);
  }
  c10::DataPtr memory = storage->set_data_ptr(c10::DataPtr(nullptr, mesh_.device()));
  storage->set_nbytes(static_cast<size_t>(0));
  if (own_memory && kept_memory_.size() < kKeptBuffers) kept_memory_.push_back({buffer.bytes(), std::move(memory)});
}

void Engine::reshard(Unit& unit) {
  if (!unit.live) return;
  for (FlatBuffer* buffer : unit.buffers) detach(*buffer);
  unit.live = false;
  unit.private_copy = false;
}

void Engine::pass_guard() {
  if (!leaf_guard_) return;
  leaf_guard_->before_write();
  leaf_guard_.reset();
}

void Engine::on_leaf_write(FlatBuffer& buffer, const torch::Tensor& tensor) {
  pass_guard();
  if (memory_ != nullptr) memory_->begin_write();
  buffer.unit->stale = true;
  // Graphs that saved the old values must fail, not use the new ones.
  const int64_t begin = tensor.storage_offset();
  if (begin >= buffer.segment_numel) {  // an empty leaf: its offset tells whose
    const size_t index = static_cast<size_t>(begin - buffer.segment_numel);
    if (index < buffer.params.size()) buffer.params[index]->full.unsafeGetTensorImpl()->bump_version();
    return;
  }
  int64_t extent = 1;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.size(dim) == 0) return;
    extent += (tensor.size(dim) - 1) * tensor.stride(dim);
  }
  const int64_t segment_begin = buffer.segment_numel * mesh_.rank();
  for (Param* param : buffer.params) {
    const bool overlaps = param->offset < segment_begin + begin + extent && param->offset + param->numel() > segment_begin + begin;
    if (overlaps) param->full.unsafeGetTensorImpl()->bump_version();
  }
}

void Engine::check_full_write(FlatBuffer& buffer, const torch::Tensor& tensor, const std::string& operation) const {
  if (buffer.unit->private_copy) return;
  const Param* param = buffer.find(tensor.storage_offset());
  throw UsageError("operator " + operation + " writes to the gathered parameter " +
                   (param ? param->fqn : buffer.unit->name) +
                   ", where the write would be lost. If this is an optimizer: Build it after fully_shard(), from "
                   "model->parameters(). Otherwise write to the leaf (model->named_parameters()), or inside "
                   "`auto full = sharded.gather(); ...; full.write_back();`");
}

void Engine::sync_requires_grad(FlatBuffer& buffer, const torch::Tensor& tensor) {
  if (in_backward()) return;
  Param* param = buffer.find(tensor.storage_offset());
  if (param == nullptr || param->full.unsafeGetTensorImpl() != tensor.unsafeGetTensorImpl()) return;
  const bool leaf = param->leaf.requires_grad();
  const bool full = param->full.requires_grad();
  if (leaf == full && leaf == param->requires_grad) return;
  param->requires_grad = leaf != param->requires_grad ? leaf : full;
  param->leaf.set_requires_grad(param->requires_grad);
  param->full.set_requires_grad(param->requires_grad);
  if (param->requires_grad && !param->hooked) register_gradient_hooks(*param);
}

// Module::to, torch::load and set_data replace what a leaf points at; training would go on with
// values that no peer sees.
void Engine::check_leaves() const {
  for (const auto& param : params_) {
    if (param->leaf.storage().unsafeGetStorageImpl() == param->buffer->shard.storage().unsafeGetStorageImpl()) continue;
    throw UsageError("the sharded leaf of parameter " + param->fqn +
                     " was replaced (Module::to, torch::load, set_data): convert or load the module before "
                     "fully_shard(), or copy values in with leaf.copy_(...)");
  }
}

std::vector<Engine::Header> Engine::announce(Header header) {
  header.sequence = ++sequence_;
  header.weight = gradient_weight_;
  const std::string_view bytes(reinterpret_cast<const char*>(&header), sizeof(header));
  std::vector<Header> out;
  for (const std::string& peer : comm_->exchange_header(bytes)) {
    Header other{};
    if (peer.size() == sizeof(other)) std::memcpy(&other, peer.data(), sizeof(other));
    out.push_back(other);
  }
  for (size_t r = 0; r < out.size(); ++r) {
    const Header& other = out[r];
    if (other.sequence == header.sequence && other.phase == header.phase && other.unit == header.unit) continue;
    throw CommError("ranks run different programs: rank " + std::to_string(mesh_.rank()) + " wants to " + describe(header) +
                    ", rank " + std::to_string(r) + " " + (other.sequence == 0 ? "does something else" : "to " + describe(other)) +
                    "; gathers and reductions are collective, so all ranks must use the same modules in the same order "
                    "(to evaluate on one rank, enter sharded.gather() on all)");
  }
  return out;
}

std::string Engine::describe(const Header& header) const {
  static constexpr const char* kNames[] = {"do nothing", "gather", "reduce the gradients of", "finish the backward of",
                                           "enter a gather scope of", "agree on the order of"};
  const auto phase = static_cast<size_t>(header.phase);
  std::string text = phase < std::size(kNames) ? kNames[phase] : "do something unknown with";
  const bool known = header.unit >= 0 && header.unit < static_cast<int>(units_.size());
  text += known ? " unit " + units_[static_cast<size_t>(header.unit)]->name : " the model";
  return text + " (operation " + std::to_string(header.sequence) + ")";
}

}  // namespace tessera::fsdp
