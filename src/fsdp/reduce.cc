// Averages a unit's gradients over the ranks into the leaves' gradients.
#include <torch/torch.h>

#include <algorithm>
#include <cstring>

#include "fsdp/engine.h"
#include "fsdp/header.h"
#include "fsdp/keyed_tensor.h"
#include "fsdp/sum_kernel.h"
#include "tessera/error.h"

namespace tessera::fsdp {
namespace {

size_t grad_bytes(const FlatBuffer& buffer) {
  const size_t bytes = static_cast<size_t>(buffer.numel) * c10::elementSize(buffer.reduce_dtype());
  return (bytes + layout::kAlignmentBytes - 1) / layout::kAlignmentBytes * layout::kAlignmentBytes;
}

// Offset of a buffer's gradients inside the region that holds those of its unit.
size_t grad_offset(const FlatBuffer& buffer) {
  size_t offset = 0;
  for (const FlatBuffer* other : buffer.unit->buffers) {
    if (other == &buffer) return offset;
    if (other->has_grads()) offset += grad_bytes(*other);
  }
  return offset;
}

}  // namespace

void Engine::acquire_gradients(Unit& unit) {
  torch::NoGradGuard no_grad;
  if (memory_ != nullptr) {
    size_t bytes = 0;
    for (const FlatBuffer* buffer : unit.buffers) bytes += buffer->has_grads() ? grad_bytes(*buffer) : 0;
    unit.grad_slot = slots_->acquire(bytes);
  }
  for (FlatBuffer* buffer : unit.buffers) {
    if (!buffer->has_grads()) continue;
    const auto options = torch::TensorOptions().dtype(buffer->reduce_dtype()).device(mesh_.device());
    if (memory_ != nullptr) {
      buffer->grad_full = torch::from_blob(slots_->data(mesh_.rank(), unit.grad_slot) + grad_offset(*buffer), {buffer->numel}, options);
    } else if (mesh_.world_size() == 1 && buffer->grad_shard.defined() && buffer->grad_shard.storage().use_count() == 1) {
      buffer->grad_full = std::move(buffer->grad_shard);  // nobody holds last step's gradients
    } else {
      buffer->grad_full = torch::empty({buffer->numel}, options);
    }
  }
}

void Engine::release_gradients(Unit& unit) {
  if (unit.grad_slot >= 0) slots_->release(unit.grad_slot, memory_->value(mesh_.rank(), comm::SharedMemory::kReduced));
  unit.grad_slot = -1;
  for (FlatBuffer* buffer : unit.buffers) buffer->grad_full = torch::Tensor();
}

void Engine::zero_missing(Unit& unit) {
  for (Param* param : unit.params) {
    if (param->grad_arrived || !param->buffer->grad_full.defined()) continue;
    param->buffer->grad_full.narrow(0, param->offset, param->numel()).zero_();
  }
}

// Which parameters got a gradient on any rank: those get a defined .grad on every rank.
std::vector<bool> Engine::exchange_used(Unit& unit, std::vector<Header>& headers) {
  const size_t count = unit.params.size();
  Header header{Phase::kReduce, unit.index};
  header.grad_slot = unit.grad_slot;
  const bool is_inline = count <= Header::kInlineFlags;
  std::vector<uint64_t> words((count + 63) / 64, 0);
  for (size_t i = 0; i < count; ++i) {
    if (unit.params[i]->grad_arrived) words[i / 64] |= uint64_t{1} << (i % 64);
  }
  if (is_inline) std::copy(words.begin(), words.end(), header.used.begin());
  headers = announce(header);

  std::vector<bool> used(count, false);
  const auto merge = [&](const uint64_t* flags) {
    for (size_t i = 0; i < count; ++i) {
      if ((flags[i / 64] >> (i % 64) & 1) != 0) used[i] = true;
    }
  };
  if (is_inline) {
    for (const Header& peer : headers) merge(peer.used.data());
    return used;
  }
  const std::string_view bytes(reinterpret_cast<const char*>(words.data()), words.size() * sizeof(uint64_t));
  for (const std::string& peer : comm_->all_gather_bytes(bytes)) {
    std::vector<uint64_t> other(words.size(), 0);
    std::memcpy(other.data(), peer.data(), std::min(peer.size(), bytes.size()));
    merge(other.data());
  }
  return used;
}

void Engine::reduce(Unit& unit) {
  torch::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  zero_missing(unit);
  std::vector<Header> headers;
  const std::vector<bool> used = exchange_used(unit, headers);
  if (std::find(used.begin(), used.end(), true) != used.end()) {
    const bool contributes = std::any_of(unit.buffers.begin(), unit.buffers.end(), [](const FlatBuffer* b) { return b->grad_full.defined(); });
    if (!contributes && memory_ == nullptr) {
      acquire_gradients(unit);
      zero_missing(unit);
    }
    for (FlatBuffer* buffer : unit.buffers) {
      const bool any = std::any_of(buffer->params.begin(), buffer->params.end(), [&](const Param* p) { return used[static_cast<size_t>(p->index)]; });
      if (any) reduce_buffer(*buffer, headers, used);
    }
  }
  if (memory_ != nullptr) memory_->advance(comm::SharedMemory::kReduced);
  for (Param* param : unit.params) {
    if (param->grad_installed) poison(*param);
    param->grad_arrived = false;
  }
  unit.arrived = 0;
  release_gradients(unit);
}

// Averages one buffer and hands the result to the leaves: replaced where a leaf has no gradient,
// added where it has one.
void Engine::reduce_buffer(FlatBuffer& buffer, const std::vector<Header>& headers, const std::vector<bool>& used) {
  const auto options = torch::TensorOptions().dtype(buffer.reduce_dtype()).device(mesh_.device());
  const bool fresh = std::none_of(buffer.params.begin(), buffer.params.end(), [](const Param* p) { return p->leaf.grad().defined(); });
  torch::Tensor result;
  if (fresh && mesh_.world_size() == 1 && memory_ == nullptr) {
    result = buffer.grad_full;  // the sum over one rank
    buffer.grad_shard = result;
  } else {
    const bool reusable = buffer.grad_shard.defined() && (!fresh || buffer.grad_shard.storage().use_count() == 1);
    if (!reusable) buffer.grad_shard = torch::empty({buffer.segment_numel}, options);
    result = fresh ? buffer.grad_shard : torch::empty({buffer.segment_numel}, options);
    sum_into(buffer, result, headers);
  }
  for (Param* param : buffer.params) {
    if (!used[static_cast<size_t>(param->index)]) continue;
    const bool empty = param->leaf.numel() == 0;
    const int64_t begin = empty ? 0 : param->shard_offset(mesh_.rank());
    const auto view = [&](const torch::Tensor& flat) {
      return storage_tensor(flat.storage(), flat.storage_offset() + begin, param->leaf.sizes(), buffer.reduce_dtype(), false);
    };
    torch::Tensor& grad = param->leaf.mutable_grad();
    if (grad.defined()) {
      if (!empty) grad.add_(view(result));
    } else if (buffer.dtype != buffer.reduce_dtype()) {
      grad = view(result).to(buffer.dtype);
    } else {
      grad = view(buffer.grad_shard);
      if (!fresh && !empty) grad.copy_(view(result));
    }
  }
}

void Engine::sum_into(FlatBuffer& buffer, torch::Tensor out, const std::vector<Header>& headers) {
  double total = 0;
  bool equal = true;
  for (const Header& peer : headers) {
    total += peer.weight;
    equal = equal && peer.weight == headers[0].weight;
  }
  if (!(total > 0)) throw UsageError("set_gradient_weight: the weights of all ranks sum to " + std::to_string(total));
  const double divisor = equal ? static_cast<double>(headers.size()) : total;
  if (memory_ == nullptr) {
    if (!equal) buffer.grad_full.mul_(headers[static_cast<size_t>(mesh_.rank())].weight);
    if (mesh_.world_size() == 1) {
      if (out.data_ptr() != buffer.grad_full.data_ptr()) out.copy_(buffer.grad_full);
      return;
    }
    comm_->reduce_scatter(out, buffer.grad_full);
    out.div_(divisor);
    return;
  }
  std::vector<SumSource> sources;
  const size_t skip = grad_offset(buffer) + static_cast<size_t>(buffer.segment_numel * mesh_.rank()) * c10::elementSize(buffer.reduce_dtype());
  for (size_t r = 0; r < headers.size(); ++r) {
    if (headers[r].grad_slot < 0) continue;
    sources.push_back({slots_->data(static_cast<int>(r), headers[r].grad_slot) + skip, equal ? 1.0 : headers[r].weight});
  }
  weighted_mean(out, sources, divisor);
}

}  // namespace tessera::fsdp
