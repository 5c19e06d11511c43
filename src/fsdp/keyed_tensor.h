// Tensors that carry Tessera's dispatch key, and the registry that tells which storage is whose.
//
// DispatchKey::DeferredInit is an out-of-core key that no operator of LibTorch uses; a boxed fallback
// (dispatch.cc) sees every operator that takes a tensor with it, views and saved tensors included.
// Threads: the registry is locked; everything else belongs to the thread that trains.
#pragma once

#include <torch/types.h>

#include <memory>

#include "fsdp/unit.h"
#include "fsdp/write_guard.h"

namespace tessera::fsdp {

inline constexpr c10::DispatchKey kTouchKey = c10::DispatchKey::DeferredInit;

// A tensor over `storage` that is no autograd view. `keyed` adds the dispatch key.
torch::Tensor storage_tensor(const c10::Storage& storage, int64_t offset, at::IntArrayRef sizes,
                             torch::Dtype dtype, bool keyed);

// A stand-in for `like` whose data cannot be read: any access throws and says what to do.
torch::Tensor poison_like(const torch::Tensor& like);

enum class StorageRole { kGathered, kLeaf, kGuarded };
struct ManagedStorage {
  FlatBuffer* buffer = nullptr;  // null where the storage is guarded, or nobody's
  StorageRole role = StorageRole::kGathered;
  WriteGuard* guard = nullptr;  // of a guarded one
};

void register_storage(const c10::Storage& storage, FlatBuffer* buffer, StorageRole role);
void unregister_storage(const c10::Storage& storage);
// Replaces an earlier guard. The entry goes when the memory does.
void register_guard(const c10::Storage& storage, const std::shared_ptr<WriteGuard>& guard);
ManagedStorage find_storage(const c10::StorageImpl* storage);

}  // namespace tessera::fsdp
