#include <c10/util/StringUtil.h>
#include <torch/torch.h>

#include "checkpoint/dtype.h"
#include "checkpoint/keys.h"
#include "checkpoint/load_plan.h"
#include "tessera/error.h"

namespace tessera::checkpoint {

namespace {

bool same_placement(StoredPlacement stored, const ItemTensor& item) {
  switch (item.spread()) {
    case ItemTensor::Spread::kReplicated:
      return stored == StoredPlacement::kReplicated;
    case ItemTensor::Spread::kShardedLike:
      return stored == StoredPlacement::kSharded;
    case ItemTensor::Spread::kPerRank:
      return stored == StoredPlacement::kPerRank;
  }
  return false;
}

}  // namespace

void ItemTensorLoad::plan(LoadPlan& plan, const StateDictContext& context) {
  const std::string prefix = item_key(plan.spec, "");
  std::set<std::string> live;
  for (const StateEntry& entry : context.entries()) {
    if (entry.role != StateRole::kItem) continue;
    live.insert(entry.key);
    const StoredTensor* stored = plan.manifest.find(entry.key);
    if (stored)
      plan_entry(plan, entry, *stored);
    else
      plan.missing(StatePart::kItems, entry.key, "'" + entry.key + "': missing in the checkpoint");
  }
  for (const StoredTensor& stored : plan.manifest.tensors) {
    if (!stored.key.starts_with(prefix) || live.contains(stored.key)) continue;
    plan.report.unexpected.push_back(stored.key);
    plan.note("'" + stored.key + "' of the checkpoint is not used here");
  }
}

void ItemTensorLoad::plan_entry(LoadPlan& plan, const StateEntry& entry,
                                const StoredTensor& stored) {
  const ItemTensor& item = plan.state.tensors.at(entry.name);
  const bool local = plan.manifest.head.kind == StoredKind::kLocal;
  if (!local && !same_placement(stored.placement, item)) {
    plan.problems.push_back(c10::str("'", entry.key, "' is ", to_string(stored.placement),
                                     " in the checkpoint, something else here"));
    return;
  }
  if (stored.shape != entry.shape || !scalar_type(stored.dtype)) {
    plan.problems.push_back(c10::str("'", entry.key, "': shape ", shape_text(stored.shape), " ",
                                     stored.dtype, " in the checkpoint, ", shape_text(entry.shape),
                                     " ", entry.dtype, " here"));
    return;
  }
  if (stored.dtype != entry.dtype) plan.convert(entry.key, stored.dtype, entry.dtype);
  Target target;
  target.item = &item;
  target.key = entry.key;
  const bool other_world = plan.manifest.head.world_size != plan.state.world_size();
  if (stored.placement == StoredPlacement::kPerRank && other_world)
    plan_other_world(plan, entry, stored, target);
  if (target.of_ranks.empty()) {
    const layout::RowRange rows = item.spread() == ItemTensor::Spread::kShardedLike
                                      ? layout::RowRange{entry.row_begin, entry.row_end}
                                      : layout::RowRange{0, stored.rows()};
    target.fresh = plan.reserve(stored, rows, entry.tensor.sizes(), entry.tensor.scalar_type(),
                                entry.tensor.device());
  }
  targets_.push_back(std::move(target));
}

void ItemTensorLoad::plan_other_world(LoadPlan& plan, const StateEntry& entry,
                                      const StoredTensor& stored, Target& target) {
  const int ranks = plan.manifest.head.world_size;
  const std::string what = c10::str("'", entry.key, "' was saved by ", ranks, " ranks, each its own");
  switch (target.item->otherwise()) {
    case OtherWorld::kRefuse:
      plan.problems.push_back(c10::str(what, ", and ", plan.state.world_size(),
                                       " load it: ItemTensor::per_rank can say what becomes of it"));
      break;
    case OtherWorld::kTakeRank0:
      plan.note(what + "; all ranks take rank 0's");
      break;
    case OtherWorld::kMerge:
      plan.note(what + "; all ranks take what the program merges them to");
      for (int rank = 0; rank < ranks; ++rank) {
        target.of_ranks.push_back(plan.reserve(stored, {0, stored.rows()}, entry.tensor.sizes(),
                                               entry.tensor.scalar_type(), entry.tensor.device()));
        plan.tensors.back().request.rank = rank;
      }
      break;
  }
}

void ItemTensorLoad::merge() {
  for (Target& target : targets_) {
    if (target.of_ranks.empty()) continue;
    target.fresh = target.item->merge()(target.of_ranks);
    const torch::Tensor& live = target.item->tensor();
    if (!target.fresh.defined() || target.fresh.sizes() != live.sizes() ||
        target.fresh.scalar_type() != live.scalar_type())
      throw UsageError("the function that merges '" + target.key +
                       "' must return a tensor of the shape and dtype of those that it gets");
  }
}

void ItemTensorLoad::commit() {
  torch::NoGradGuard no_grad;
  for (const Target& target : targets_) target.item->tensor().copy_(target.fresh);
}

}  // namespace tessera::checkpoint
