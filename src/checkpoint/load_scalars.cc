#include <c10/util/StringUtil.h>
#include <torch/torch.h>

#include <mutex>
#include <nlohmann/json.hpp>

#include "checkpoint/item_value.h"
#include "checkpoint/keys.h"
#include "checkpoint/load_plan.h"
#include "checkpoint/scheduler_access.h"
#include "io/checksum.h"
#include "tessera/error.h"

namespace tessera::checkpoint {

namespace {

using Json = nlohmann::json;

Json section(const Json& scalars, const char* name) {
  const auto found = scalars.find(name);
  return found != scalars.end() && found->is_object() ? *found : Json::object();
}

}  // namespace

void ScalarLoad::plan(LoadPlan& plan, const StateDictContext& context) {
  if (plan.spec.with_rng()) {
    plan_rng(plan, "cpu", plan.state.generator);
    plan_rng(plan, "cuda", plan.state.device_generator);
  }
  if (!plan.spec.with_items()) return;
  const Json stored = Json::parse(plan.manifest.scalars_json);
  const Json live = Json::parse(context.scalars_json());
  plan_schedulers(plan, stored);
  plan_items(plan, stored, live);
}

void ScalarLoad::plan_rng(LoadPlan& plan, const std::string& device,
                          const at::Generator& generator) {
  if (!generator.defined()) return;
  const std::string key = rng_key(plan.spec, device);
  const StoredTensor* stored = plan.manifest.find(key);
  if (!stored) {
    // A run may move to another kind of device; every run has a CPU.
    if (device == "cpu")
      plan.problems.push_back("'" + key + "': missing in the checkpoint");
    else
      plan.note("'" + key + "' is not in the checkpoint; this generator stays as it is");
    return;
  }
  Generator target{generator, torch::Tensor(), 0};
  if (plan.manifest.head.world_size == plan.state.world_size()) {
    if (stored->dtype != "U8" || stored->shape.size() != 1) {
      plan.problems.push_back("'" + stored->key + "' is no generator state");
      return;
    }
    target.state =
        plan.reserve(*stored, {0, stored->rows()}, stored->shape, torch::kUInt8, torch::kCPU);
  } else {
    // The hash of all hashes stands for the whole saved state, its generators included.
    const uint64_t parts[] = {plan.manifest.hashes_hash,
                              static_cast<uint64_t>(plan.manifest.head.step),
                              static_cast<uint64_t>(plan.state.rank())};
    target.seed = io::hash_bytes(parts, sizeof(parts));
    plan.note(c10::str("random numbers of '", key, "': ", plan.manifest.head.world_size,
                       " ranks saved their generators, ", plan.state.world_size(),
                       " load; every rank starts from a seed made of the saved state, step and rank"));
  }
  generators_.push_back(std::move(target));
}

void ScalarLoad::plan_schedulers(LoadPlan& plan, const Json& stored) {
  const Json schedulers = section(stored, "schedulers");
  for (const auto& [name, scheduler] : plan.state.schedulers) {
    const auto found = schedulers.find(name);
    if (found == schedulers.end() || !found->is_number_integer())
      plan.missing(StatePart::kItems, "scheduler." + name,
                   "scheduler '" + name + "': missing in the checkpoint");
    else
      schedulers_.emplace_back(scheduler, found->get<int64_t>());
  }
  for (const auto& [name, value] : schedulers.items()) {
    if (plan.state.schedulers.contains(name)) continue;
    plan.report.unexpected.push_back("scheduler." + name);
    plan.note("scheduler '" + name + "' of the checkpoint is not used here");
  }
}

void ScalarLoad::plan_items(LoadPlan& plan, const Json& stored, const Json& live) {
  const Json items = section(stored, "items");
  const Json live_items = section(live, "items");
  for (const auto& [name, item] : plan.state.items) {
    const std::string what = "item '" + name + "'";
    const auto found = items.find(name);
    if (found == items.end()) {
      plan.missing(StatePart::kItems, "item." + name, what + ": missing in the checkpoint");
      continue;
    }
    const ItemValue value = decode_item(*found, what);
    const ItemValue current = decode_item(live_items.at(name), what);
    if (value.index() != current.index())
      plan.problems.push_back(c10::str(what, " is ", type_name(value), " in the checkpoint, ",
                                       type_name(current), " here"));
    else
      items_.emplace_back(&item, value);
  }
  for (const auto& [name, value] : items.items()) {
    if (plan.state.items.contains(name)) continue;
    plan.report.unexpected.push_back("item." + name);
    plan.note(c10::str("item '", name, "' of the checkpoint is not used here: ", value.dump()));
  }
}

void ScalarLoad::commit() {
  for (const auto& [scheduler, step] : schedulers_) set_scheduler_step(*scheduler, step);
  for (Generator& target : generators_) {
    const std::lock_guard<std::mutex> lock(target.generator.mutex());
    if (target.state.defined())
      target.generator.set_state(target.state);
    else
      target.generator.set_current_seed(target.seed);
  }
  for (const auto& [item, value] : items_) item->set(value);
}

}  // namespace tessera::checkpoint
