// The boxed fallback behind the touch mechanism: sees every operator that takes a keyed tensor,
// makes the units among its arguments readable for as long as the operator runs, reports writes to
// leaves before they happen, and hands the operator on below the key.
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <unordered_map>

#include "fsdp/engine.h"
#include "fsdp/keyed_tensor.h"
#include "tessera/error.h"

namespace tessera::fsdp {
namespace {

// What the fallback needs of an operator's schema, worked out once.
struct OperatorInfo {
  struct Argument {
    size_t position;  // counted from the end of the stack
    bool writes;
  };
  std::vector<Argument> tensors;
  std::string name;
};

bool may_hold_tensors(const c10::Type& type) {
  if (type.kind() == c10::TypeKind::TensorType) return true;
  if (type.kind() == c10::TypeKind::OptionalType || type.kind() == c10::TypeKind::ListType) {
    return may_hold_tensors(*type.containedType(0));
  }
  return false;
}

const OperatorInfo& operator_info(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<const c10::FunctionSchema*, OperatorInfo> cache;
  const c10::FunctionSchema& schema = op.schema();
  const auto [entry, is_new] = cache.try_emplace(&schema);
  OperatorInfo& info = entry->second;
  if (is_new) {
    info.name = schema.name();
    // set_data asks this of both tensors; it reads metadata only, also while a unit is being built.
    if (info.name == "aten::_has_compatible_shallow_copy_type") return info;
    const auto& arguments = schema.arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (!may_hold_tensors(*arguments[i].type())) continue;
      const auto* alias = arguments[i].alias_info();
      info.tensors.push_back({arguments.size() - i, alias != nullptr && alias->isWrite()});
    }
  }
  return info;
}

class Touch {
 public:
  explicit Touch(const OperatorInfo& info) : info_(info) {}
  ~Touch() {
    for (Unit* unit : pinned_) unit->engine->unpin(*unit);
  }
  Touch(const Touch&) = delete;
  Touch& operator=(const Touch&) = delete;

  void collect(const torch::Tensor& tensor, bool writes) {
    if (!tensor.defined() || !tensor.key_set().has(kTouchKey) || !tensor.has_storage()) return;
    const ManagedStorage managed = find_storage(tensor.storage().unsafeGetStorageImpl());
    if (managed.role == StorageRole::kGuarded) {
      if (writes) managed.guard->before_write();
      return;
    }
    if (managed.buffer == nullptr) {
      throw UsageError("operator " + info_.name + " uses a sharded parameter whose tessera::Sharded no longer exists; "
                       "keep the result of fully_shard() for as long as the model is used");
    }
    FlatBuffer& buffer = *managed.buffer;
    if (managed.role == StorageRole::kLeaf) {
      if (writes) buffer.unit->engine->on_leaf_write(buffer, tensor);
      return;
    }
    if (writes) buffer.unit->engine->check_full_write(buffer, tensor, info_.name);
    buffer.unit->engine->sync_requires_grad(buffer, tensor);
    if (std::find(units_.begin(), units_.end(), buffer.unit) == units_.end()) units_.push_back(buffer.unit);
  }

  void collect(const c10::IValue& value, bool writes) {
    if (value.isTensor()) {
      collect(value.toTensor(), writes);
    } else if (value.isTensorList()) {
      for (const torch::Tensor& tensor : value.toTensorVector()) collect(tensor, writes);
    } else if (value.isList()) {
      for (const c10::IValue& element : value.toListRef()) collect(element, writes);
    }
  }

  // Gathers in the order of the arguments, which is the same on every rank.
  void acquire() {
    for (Unit* unit : units_) {
      unit->engine->pin(*unit);
      pinned_.push_back(unit);
    }
    for (size_t i = 0; i < units_.size(); ++i) {
      const bool first_of_engine = std::none_of(units_.begin(), units_.begin() + static_cast<std::ptrdiff_t>(i),
                                                [&](Unit* other) { return other->engine == units_[i]->engine; });
      if (first_of_engine) units_[i]->engine->evict_all_but_pinned();
    }
  }

 private:
  const OperatorInfo& info_;
  c10::SmallVector<Unit*, 4> units_;
  c10::SmallVector<Unit*, 4> pinned_;
};

void touch_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const OperatorInfo& info = operator_info(op);
  Touch touch(info);
  for (const auto& argument : info.tensors) {
    touch.collect((*stack)[stack->size() - argument.position], argument.writes);
  }
  touch.acquire();
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kTouchKey), stack);
}

}  // namespace

// Makes the linker keep this file's registration in a static library.
void link_dispatch() {}

}  // namespace tessera::fsdp

TORCH_LIBRARY_IMPL(_, DeferredInit, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&tessera::fsdp::touch_fallback>());
}
