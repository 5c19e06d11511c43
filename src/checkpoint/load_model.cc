#include <ATen/MemoryOverlap.h>
#include <c10/util/StringUtil.h>
#include <torch/torch.h>

#include <algorithm>
#include <set>

#include "checkpoint/dtype.h"
#include "checkpoint/keys.h"
#include "checkpoint/load_plan.h"

namespace tessera::checkpoint {

std::string shape_text(const std::vector<int64_t>& shape) {
  return c10::str("[", c10::Join(", ", shape), "]");
}

torch::Tensor LoadPlan::reserve(const StoredTensor& stored, layout::RowRange rows,
                                torch::IntArrayRef local_shape, torch::ScalarType dtype,
                                torch::Device device) {
  const auto stored_type = scalar_type(stored.dtype);
  FreshTensor tensor;
  const auto host = torch::TensorOptions().dtype(*stored_type).device(torch::kCPU);
  tensor.host = torch::empty(local_shape, host);
  const bool in_place = dtype == *stored_type && device.is_cpu();
  tensor.fresh =
      in_place ? tensor.host : torch::empty(local_shape, host.dtype(dtype).device(device));
  tensor.request = {&stored, rows, state.rank(), tensor.host.data_ptr()};
  if (stored.placement == StoredPlacement::kPerRank &&
      manifest.head.world_size != state.world_size())
    tensor.request.rank = 0;
  tensors.push_back(tensor);
  return tensor.fresh;
}

const std::string& LoadPlan::stored_name(const std::string& name) const {
  const auto alias = manifest.aliases.find(name);
  return alias == manifest.aliases.end() ? name : alias->second;
}

const StoredTensor* ModelLoad::find(LoadPlan& plan, const StateEntry& entry,
                                    const std::vector<std::string>& aliases) {
  std::vector<std::string> names = {entry.name};
  names.insert(names.end(), aliases.begin(), aliases.end());
  const StoredTensor* found = nullptr;
  for (const std::string& name : names) {
    const StoredTensor* stored = plan.manifest.find(model_key(plan.spec, plan.stored_name(name)));
    if (!stored || stored == found) continue;
    if (found) {
      plan.problems.push_back(c10::str("'", entry.key, "' is one tied parameter here, but '",
                                       found->key, "' and '", stored->key,
                                       "' are two in the checkpoint"));
      used_.push_back(stored);
      continue;
    }
    found = stored;
  }
  return found;
}

void ModelLoad::plan_entry(LoadPlan& plan, const StateEntry& entry, const StoredTensor& stored) {
  const auto problem = [&](const std::string& text) {
    plan.problems.push_back(c10::str("'", entry.key, "': ", text));
  };
  if (stored.shape != entry.shape)
    return problem(c10::str("shape ", shape_text(stored.shape), " in the checkpoint, ",
                            shape_text(entry.shape), " here"));
  const auto stored_type = scalar_type(stored.dtype);
  if (!stored_type)
    return problem("dtype " + stored.dtype + " in the checkpoint is not known here");
  if (stored.dtype != entry.dtype) {
    if (plan.spec.dtype_policy() == DtypePolicy::kExact)
      return problem(c10::str("dtype ", stored.dtype, " in the checkpoint, ", entry.dtype,
                              " here (DtypePolicy::kConvert allows it)"));
    plan.notes.push_back(
        c10::str("'", entry.key, "' converted from ", stored.dtype, " to ", entry.dtype));
  }
  layout::RowRange rows{0, stored.rows()};
  if (entry.placement == Placement::kSharded) {
    if (stored.placement == StoredPlacement::kPerRank)
      return problem("one value a rank in the checkpoint, a sharded parameter here");
    rows = {entry.row_begin, entry.row_end};
  } else if (stored.placement == StoredPlacement::kPerRank &&
             plan.manifest.head.world_size != plan.state.world_size()) {
    plan.notes.push_back(c10::str("'", entry.key, "' differed between the ",
                                  plan.manifest.head.world_size,
                                  " ranks that saved it; all ranks take rank 0's"));
  }
  Target target;
  target.live = entry.tensor;
  target.fresh = plan.reserve(stored, rows, entry.tensor.sizes(), entry.tensor.scalar_type(),
                              entry.tensor.device());
  targets_.push_back(std::move(target));
}

// Names that are one parameter in the checkpoint must be one parameter here.
void ModelLoad::check_ties(LoadPlan& plan) {
  std::map<std::string, std::string> first_name;  // stored name -> the live parameter that took it
  for (const ShardedParameter& parameter : plan.state.parameters) {
    const auto [taken, added] = first_name.emplace(plan.stored_name(parameter.fqn), parameter.fqn);
    if (!added)
      plan.problems.push_back(c10::str("'", parameter.fqn, "' and '", taken->second,
                                       "' are one tied parameter in the checkpoint, but two here"));
  }
}

void ModelLoad::check_unexpected(LoadPlan& plan) {
  const std::set<const StoredTensor*> used(used_.begin(), used_.end());
  const std::string prefix = model_key(plan.spec, "");
  for (const StoredTensor& stored : plan.manifest.tensors)
    if (stored.key.starts_with(prefix) && !used.contains(&stored))
      plan.problems.push_back(c10::str("'", stored.key, "' ", shape_text(stored.shape),
                                       ": in the checkpoint, but not here"));
}

void ModelLoad::plan(LoadPlan& plan, const StateDictContext& context) {
  std::map<std::string, std::vector<std::string>> aliases;
  for (const ShardedParameter& parameter : plan.state.parameters)
    aliases[parameter.fqn] = parameter.aliases;
  for (const StateEntry& entry : context.entries()) {
    if (entry.role != StateRole::kParameter && entry.role != StateRole::kBuffer) continue;
    const StoredTensor* stored = find(plan, entry, aliases[entry.name]);
    if (!stored) {
      plan.problems.push_back(
          c10::str("'", entry.key, "' ", shape_text(entry.shape), ": missing in the checkpoint"));
      continue;
    }
    used_.push_back(stored);
    plan_entry(plan, entry, *stored);
  }
  check_ties(plan);
  check_unexpected(plan);
}

void ModelLoad::commit() {
  torch::NoGradGuard no_grad;
  for (Target& target : targets_) {
    if (target.live.numel() == 0) continue;
    // An expanded buffer cannot be written element by element.
    if (at::has_internal_overlap(target.live) == at::MemOverlap::Yes)
      target.live.set_data(target.fresh);
    else
      target.live.copy_(target.fresh);
  }
}

}  // namespace tessera::checkpoint
