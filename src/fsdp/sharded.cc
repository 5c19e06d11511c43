#include <torch/torch.h>

#include <algorithm>
#include <iomanip>
#include <sstream>
#include <unordered_set>

#include "fsdp/engine.h"
#include "tessera/error.h"
#include "tessera/fsdp.h"

namespace tessera {

Sharded::Sharded(std::shared_ptr<fsdp::Engine> engine) : engine_(std::move(engine)) {}

double Sharded::clip_grad_norm(double max_norm, double norm_type) { return engine_->clip_grad_norm(max_norm, norm_type); }

void Sharded::set_gradient_weight(double samples) {
  if (!(samples >= 0)) throw UsageError("set_gradient_weight: " + std::to_string(samples) + " is not a number of samples");
  engine_->set_gradient_weight(samples);
}

Gathered Sharded::gather() {
  std::vector<int> units;
  for (const auto& unit : engine_->units()) units.push_back(unit->index);
  return Gathered(engine_, std::move(units));
}

Gathered Sharded::gather(const torch::nn::Module& submodule) {
  // The registry of the submodule holds leaves; their parameters name the units.
  std::unordered_set<const c10::TensorImpl*> leaves;
  for (const torch::Tensor& leaf : submodule.parameters()) leaves.insert(leaf.unsafeGetTensorImpl());
  std::vector<int> units;
  for (const auto& unit : engine_->units()) {
    const bool holds = std::any_of(unit->params.begin(), unit->params.end(), [&](const fsdp::Param* param) {
      return leaves.count(param->leaf.unsafeGetTensorImpl()) != 0;
    });
    if (holds) units.push_back(unit->index);
  }
  if (units.empty()) throw UsageError("sharded.gather: the submodule holds no sharded parameter of this model");
  return Gathered(engine_, std::move(units));
}

void Sharded::before_write(const torch::Tensor& leaf) {
  for (const auto& param : engine_->params()) {
    if (param->leaf.unsafeGetTensorImpl() != leaf.unsafeGetTensorImpl()) continue;
    engine_->on_leaf_write(*param->buffer, leaf);
    return;
  }
  throw UsageError("before_write: the tensor is not a sharded leaf of this model");
}

const std::vector<ShardedParameter>& Sharded::parameters() const { return engine_->sharded_parameters(); }

std::vector<NamedBuffer> Sharded::buffers() const {
  std::vector<NamedBuffer> out;
  for (const auto& item : engine_->module().named_buffers()) {
    if (item.value().defined()) out.push_back({item.key(), item.value()});
  }
  return out;
}

int64_t Sharded::full_numel() const {
  int64_t numel = 0;
  for (const auto& param : engine_->params()) numel += param->numel();
  return numel;
}

std::string Sharded::summary() const { return engine_->summary(); }
const Mesh& Sharded::mesh() const { return engine_->mesh(); }
torch::nn::Module& Sharded::module() const { return engine_->module(); }

std::string fsdp::Engine::summary() const {
  std::ostringstream out;
  out << "rank " << mesh_.rank() << " of " << mesh_.world_size() << " over " << comm_->name() << ", " << units_.size() << " units\n";
  out << std::left << std::setw(28) << "unit" << std::right << std::setw(8) << "params" << std::setw(14) << "elements"
      << std::setw(14) << "here" << std::setw(10) << "padding" << "\n";
  for (const auto& unit : units_) {
    int64_t payload = 0;
    int64_t here = 0;
    int64_t stored = 0;
    for (const Param* param : unit->params) {
      payload += param->numel();
      here += param->leaf.numel();
    }
    for (const FlatBuffer* buffer : unit->buffers) stored += buffer->numel;
    const double padding = stored > 0 ? 100.0 * static_cast<double>(stored - payload) / static_cast<double>(stored) : 0;
    out << std::left << std::setw(28) << unit->name << std::right << std::setw(8) << unit->params.size() << std::setw(14) << payload
        << std::setw(14) << here << std::setw(9) << std::fixed << std::setprecision(2) << padding << "%\n";
  }
  return out.str();
}

}  // namespace tessera
