#include "fsdp/keyed_tensor.h"

#include <torch/torch.h>

#include <mutex>
#include <shared_mutex>
#include <unordered_map>

namespace tessera::fsdp {
namespace {

struct Registry {
  std::shared_mutex mutex;
  std::unordered_map<const c10::StorageImpl*, ManagedStorage> storages;
  struct Guarded {
    // Keeps the address, not the memory: no other storage can be taken for this one.
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    std::shared_ptr<WriteGuard> guard;
  };
  std::unordered_map<const c10::StorageImpl*, Guarded> guarded;
  size_t prune_at = 64;
};

void prune(Registry& all) {
  for (auto entry = all.guarded.begin(); entry != all.guarded.end();) {
    if (!entry->second.storage.expired()) {
      ++entry;
      continue;
    }
    all.storages.erase(entry->first);
    entry = all.guarded.erase(entry);
  }
  all.prune_at = 2 * all.guarded.size() + 64;
}

Registry& registry() {
  static Registry instance;
  return instance;
}

}  // namespace

torch::Tensor storage_tensor(const c10::Storage& storage, int64_t offset, at::IntArrayRef sizes,
                             torch::Dtype dtype, bool keyed) {
  c10::DispatchKeySet keys{c10::DispatchKey::ADInplaceOrView};
  if (storage.device().is_cuda()) {
    keys = keys | c10::DispatchKeySet{c10::DispatchKey::CUDA, c10::DispatchKey::AutogradCUDA};
  } else {
    keys = keys | c10::DispatchKeySet{c10::DispatchKey::CPU, c10::DispatchKey::AutogradCPU};
  }
  if (keyed) keys = keys.add(kTouchKey);
  auto impl = c10::make_intrusive<c10::TensorImpl>(c10::Storage(storage), keys, c10::scalarTypeToTypeMeta(dtype));
  impl->set_storage_offset(offset);
  impl->set_sizes_contiguous(sizes);
  return torch::Tensor(std::move(impl));
}

torch::Tensor poison_like(const torch::Tensor& like) {
  // The flag cannot be taken back from a storage, so the poison has one of its own, on each device:
  // operators look at the devices of their arguments before they look at data.
  static std::mutex mutex;
  static std::unordered_map<c10::Device, c10::Storage> storages;
  const std::lock_guard lock(mutex);
  c10::Storage& storage = storages[like.device()];
  if (!storage) {
    storage = torch::empty({0}, torch::TensorOptions().device(like.device())).storage();
    storage.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(
        "this is the gradient of a parameter that fully_shard() has sharded: the optimizer was built "
        "before wrapping and would train nothing. Build it after fully_shard(), from "
        "model->parameters().");
  }
  return storage_tensor(storage, 0, like.sizes(), like.scalar_type(), false);
}

void register_storage(const c10::Storage& storage, FlatBuffer* buffer, StorageRole role) {
  std::unique_lock lock(registry().mutex);
  registry().storages[storage.unsafeGetStorageImpl()] = {buffer, role, nullptr};
}

void unregister_storage(const c10::Storage& storage) {
  std::unique_lock lock(registry().mutex);
  registry().storages.erase(storage.unsafeGetStorageImpl());
}

void register_guard(const c10::Storage& storage, const std::shared_ptr<WriteGuard>& guard) {
  Registry& all = registry();
  std::unique_lock lock(all.mutex);
  if (all.guarded.size() >= all.prune_at) prune(all);
  const c10::StorageImpl* key = storage.unsafeGetStorageImpl();
  all.storages[key] = {nullptr, StorageRole::kGuarded, guard.get()};
  all.guarded.insert_or_assign(key, Registry::Guarded{storage.getWeakStorageImpl(), guard});
}

ManagedStorage find_storage(const c10::StorageImpl* storage) {
  std::shared_lock lock(registry().mutex);
  const auto found = registry().storages.find(storage);
  return found == registry().storages.end() ? ManagedStorage{} : found->second;
}

}  // namespace tessera::fsdp
