// Scopes in which whole parameters can be read and written.
#include <torch/torch.h>

#include <algorithm>

#include "fsdp/engine.h"
#include "fsdp/header.h"
#include "fsdp/keyed_tensor.h"
#include "tessera/error.h"

namespace tessera {
namespace fsdp {
namespace {

torch::Tensor whole(const FlatBuffer& buffer) {
  return storage_tensor(buffer.storage, 0, {buffer.numel}, buffer.dtype, /*keyed=*/false);
}

}  // namespace

// Each scope works on a copy of its own, so that ranks can write without seeing each other.
void Engine::enter_gathered(std::span<const int> units) {
  torch::NoGradGuard no_grad;
  if (in_scope_) throw UsageError("sharded.gather(): another gathered scope is open; leave it first");
  announce({Phase::kScope, -1});
  begin_read();
  for (const int index : units) {
    Unit& unit = *units_[static_cast<size_t>(index)];
    if (unit.pins > 0) throw UsageError("sharded.gather(): unit " + unit.name + " is in use by a running operator");
    reshard(unit);
    if (!mapped_) gather(unit);
    unit.private_copy = true;
    for (FlatBuffer* buffer : unit.buffers) {
      if (!mapped_) continue;
      attach(*buffer, /*private_copy=*/true);
      whole(*buffer).copy_(torch::from_blob(buffer->mapping, {buffer->numel}, buffer->shard.options()));
    }
    unit.live = true;
    ++unit.pins;
  }
  in_scope_ = true;
}

void Engine::leave_gathered(std::span<const int> units) noexcept {
  in_scope_ = false;
  for (const int index : units) {
    Unit& unit = *units_[static_cast<size_t>(index)];
    --unit.pins;
    reshard(unit);
  }
  std::erase_if(current_, [](const Unit* unit) { return !unit->live; });
}

void Engine::write_back(std::span<const int> units) {
  torch::NoGradGuard no_grad;
  pass_guard();
  if (memory_ != nullptr) memory_->begin_write();
  for (const int index : units) {
    Unit& unit = *units_[static_cast<size_t>(index)];
    for (FlatBuffer* buffer : unit.buffers) {
      buffer->shard.copy_(whole(*buffer).narrow(0, buffer->segment_numel * mesh_.rank(), buffer->segment_numel));
    }
    for (Param* param : unit.params) param->leaf.unsafeGetTensorImpl()->bump_version();
  }
}

}  // namespace fsdp

Gathered::Gathered(std::shared_ptr<fsdp::Engine> engine, std::vector<int> units)
    : engine_(std::move(engine)), units_(std::move(units)) {
  engine_->enter_gathered(units_);
}

Gathered::Gathered(Gathered&& other) noexcept = default;

Gathered::~Gathered() {
  if (engine_) engine_->leave_gathered(units_);
}

torch::Tensor Gathered::operator[](const std::string& fqn) const {
  for (const auto& param : engine_->params()) {
    const bool named = param->fqn == fqn || std::find(param->aliases.begin(), param->aliases.end(), fqn) != param->aliases.end();
    if (!named) continue;
    if (std::find(units_.begin(), units_.end(), param->buffer->unit->index) != units_.end()) return param->full;
    throw UsageError("parameter " + fqn + " is not in this gathered scope");
  }
  throw UsageError("no parameter is called " + fqn);
}

void Gathered::write_back() { engine_->write_back(units_); }

}  // namespace tessera
