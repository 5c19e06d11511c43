// The moment of wrapping: memory for the flat buffers, this rank's rows moved in, the module's
// tensors turned into gathered parameters and its registry into sharded leaves.
#include <torch/torch.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "fsdp/engine.h"
#include "fsdp/header.h"
#include "fsdp/keyed_tensor.h"
#include "tessera/error.h"

namespace tessera::fsdp {
namespace {

constexpr size_t kPageBytes = 4096;

size_t round_to_page(size_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

// Module::parameters_ is protected: a derived class may form a pointer to it.
struct RegistryAccess : torch::nn::Module {
  static torch::OrderedDict<std::string, torch::Tensor>& of(torch::nn::Module& module) {
    return module.*(&RegistryAccess::parameters_);
  }
};

void copy_owned_rows(const Param& param, FlatBuffer& buffer, int rank) {
  if (param.rows.size() == 0) return;
  const torch::Tensor values = param.full.detach().contiguous().view({-1});
  const int64_t row_numel = layout::param_shape(param.shape).row_numel;
  const int64_t count = param.rows.size() * row_numel;
  buffer.shard.narrow(0, param.shard_offset(rank), count).copy_(values.narrow(0, param.rows.begin * row_numel, count));
}

}  // namespace

void Engine::install() {
  torch::NoGradGuard no_grad;
  allocate_buffers();
  for (auto& buffer : buffers_) create_tensors(*buffer);
  swap_registries();
  for (auto& param : params_) {
    if (param->requires_grad) register_gradient_hooks(*param);
    sharded_parameters_.push_back({param->fqn, param->aliases, param->leaf, param->shape, param->rows.begin,
                                   param->rows.end, param->buffer->unit->index});
  }
  // Registration order reversed is the usual order of a backward; the root's gradients come last.
  for (size_t i = units_.size(); i-- > 0;) reduce_order_.push_back(units_[i]->index);
  comm_->barrier();  // nobody reads before everybody has written its rows
}

void Engine::allocate_buffers() {
  size_t total = 0;
  for (const auto& buffer : buffers_) total += round_to_page(buffer->bytes());
  std::byte* base = nullptr;
  if (memory_ != nullptr && total > 0) {
    std::string failure;
    int region = -1;
    if (mesh_.rank() == 0) {
      try {
        region = memory_->export_region(total);
      } catch (const Error& error) {
        failure = error.what();
      }
    }
    const std::string first = comm_->all_gather_bytes(failure.empty() ? std::to_string(region) : "!" + failure)[0];
    if (first[0] == '!') throw IoError("rank 0: " + first.substr(1) + " (the model's parameters need it)");
    base = memory_->region(0, std::stoi(first));
  } else if (mapped_ && total > 0) {
    own_mapping_ = torch::zeros({static_cast<int64_t>(total)}, torch::TensorOptions().dtype(torch::kUInt8).device(mesh_.device()));
    base = static_cast<std::byte*>(own_mapping_.data_ptr());
  }
  for (auto& buffer : buffers_) {
    const auto options = torch::TensorOptions().dtype(buffer->dtype).device(mesh_.device());
    if (mapped_) {
      buffer->mapping = base;
      base += round_to_page(buffer->bytes());
      const size_t skip = static_cast<size_t>(buffer->segment_numel * mesh_.rank()) * c10::elementSize(buffer->dtype);
      buffer->shard = torch::from_blob(buffer->mapping + skip, {buffer->segment_numel}, options);
    } else {
      buffer->shard = torch::zeros({buffer->segment_numel}, options);
    }
    buffer->storage = torch::empty({0}, options).storage();
  }
}

void Engine::create_tensors(FlatBuffer& buffer) {
  for (size_t i = 0; i < buffer.params.size(); ++i) {
    Param& param = *buffer.params[i];
    copy_owned_rows(param, buffer, mesh_.rank());
    std::vector<int64_t> sizes = param.shape;
    if (sizes.empty() && param.rows.size() == 0) sizes = {0};
    if (!sizes.empty()) sizes[0] = param.rows.size();
    // The offset of an empty leaf, which has no data, tells whose it is (on_leaf_write).
    const bool is_empty = c10::multiply_integers(sizes) == 0;
    const int64_t offset = is_empty ? buffer.segment_numel + static_cast<int64_t>(i) : param.shard_offset(mesh_.rank());
    param.leaf = storage_tensor(buffer.shard.storage(), offset, sizes, buffer.dtype, true);
    param.leaf.set_requires_grad(param.requires_grad);
  }
  // The swap asks the dispatcher whether the types are compatible, so register afterwards.
  for (Param* param : buffer.params) {
    param->full.set_data(storage_tensor(buffer.storage, param->offset, param->shape, buffer.dtype, true));
    if (buffer.has_grads()) poison(*param);
  }
  register_storage(buffer.storage, &buffer, StorageRole::kGathered);
  register_storage(buffer.shard.storage(), &buffer, StorageRole::kLeaf);
}

void Engine::swap_registries() {
  std::unordered_map<const c10::TensorImpl*, torch::Tensor> leaf_of;
  for (const auto& param : params_) leaf_of[param->full.unsafeGetTensorImpl()] = param->leaf;
  const auto swap = [&](torch::nn::Module& module) {
    for (auto& item : RegistryAccess::of(module)) {
      const auto found = leaf_of.find(item.value().unsafeGetTensorImpl());
      if (found != leaf_of.end()) item.value() = found->second;
    }
  };
  // The root may live on the stack, where modules() cannot include it.
  swap(module_);
  for (const auto& module : module_.modules(/*include_self=*/false)) swap(*module);
}

}  // namespace tessera::fsdp
