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
  if (stored.shape != entry.shape) {
    if (!plan.may_resize(entry.name, stored.shape, entry.shape))
      return problem(c10::str("shape ", shape_text(stored.shape), " in the checkpoint, ",
                              shape_text(entry.shape), " here"));
    plan.report.reshaped.push_back(entry.key);
    plan.note(c10::str("'", entry.key, "' has ", stored.rows(), " rows in the checkpoint, ",
                       entry.shape[0], " here; the rows that both have are loaded"));
  }
  if (!scalar_type(stored.dtype))
    return problem("dtype " + stored.dtype + " in the checkpoint is not known here");
  if (entry.placement == Placement::kSharded && stored.placement == StoredPlacement::kPerRank)
    return problem("one value a rank in the checkpoint, a sharded parameter here");
  if (stored.dtype != entry.dtype) plan.convert(entry.key, stored.dtype, entry.dtype);
  plan_rows(plan, entry, stored);
}

void ModelLoad::plan_rows(LoadPlan& plan, const StateEntry& entry, const StoredTensor& stored) {
  const bool sharded = entry.placement == Placement::kSharded;
  const int64_t all = entry.shape.empty() ? 1 : entry.shape[0];
  const layout::RowRange rows = common_rows(sharded ? entry.row_begin : 0,
                                            sharded ? entry.row_end : all, stored.rows());
  if (stored.placement == StoredPlacement::kPerRank &&
      plan.manifest.head.world_size != plan.state.world_size())
    plan.note(c10::str("'", entry.key, "' differed between the ", plan.manifest.head.world_size,
                       " ranks that saved it; all ranks take rank 0's"));
  const torch::Tensor rest = stored.shape == entry.shape ? torch::Tensor() : entry.tensor;
  targets_.push_back({entry.tensor,
                      plan.reserve(stored, rows, entry.tensor.sizes(), entry.tensor.scalar_type(),
                                   entry.tensor.device(), rest)});
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
      plan.unexpected(StatePart::kModel, stored.key,
                      c10::str("'", stored.key, "' ", shape_text(stored.shape),
                               ": in the checkpoint, but not here"));
}

void ModelLoad::plan(LoadPlan& plan, const StateDictContext& context) {
  std::map<std::string, std::vector<std::string>> aliases;
  for (const ShardedParameter& parameter : plan.state.parameters)
    aliases[parameter.fqn] = parameter.aliases;
  for (const StateEntry& entry : context.entries()) {
    if (entry.role != StateRole::kParameter && entry.role != StateRole::kBuffer) continue;
    const StoredTensor* stored = find(plan, entry, aliases[entry.name]);
    if (stored) used_.push_back(stored);
    if (!plan.options.chooses(entry.name)) continue;
    if (stored)
      plan_entry(plan, entry, *stored);
    else
      plan.missing(
          StatePart::kModel, entry.key,
          c10::str("'", entry.key, "' ", shape_text(entry.shape), ": missing in the checkpoint"));
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
