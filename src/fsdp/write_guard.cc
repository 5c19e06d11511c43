#include "fsdp/write_guard.h"

#include <torch/torch.h>

#include "fsdp/engine.h"
#include "fsdp/keyed_tensor.h"

namespace tessera::fsdp {

void guard_writes(const torch::Tensor& tensor, const std::shared_ptr<WriteGuard>& guard) {
  const c10::Storage& storage = tensor.storage();
  const ManagedStorage managed = find_storage(storage.unsafeGetStorageImpl());
  if (managed.buffer != nullptr) {
    managed.buffer->unit->engine->guard_leaves(guard);
    return;
  }
  link_dispatch();
  if (!tensor.key_set().has(kTouchKey)) {
    torch::NoGradGuard no_grad;
    torch::Tensor keyed = storage_tensor(storage, tensor.storage_offset(), tensor.sizes(), tensor.scalar_type(), true);
    keyed.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides());
    tensor.set_data(keyed);
  }
  register_guard(storage, guard);
}

}  // namespace tessera::fsdp
