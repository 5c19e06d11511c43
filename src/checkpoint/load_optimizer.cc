#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <torch/torch.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/adagrad_state.h"
#include "checkpoint/context.h"
#include "checkpoint/dtype.h"
#include "checkpoint/load_plan.h"
#include "checkpoint/state_keys.h"
#include "tessera/error.h"

namespace tessera::checkpoint {

namespace {

using Json = nlohmann::json;

constexpr size_t kNone = static_cast<size_t>(-1);

const Json& member(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end())
    throw CorruptionError(c10::str("manifest.json: 'optimizer' lacks '", name, "'"));
  return *found;
}

std::set<const void*> parameters_of(const torch::optim::OptimizerParamGroup& group) {
  std::set<const void*> out;
  for (const torch::Tensor& parameter : group.params()) out.insert(parameter.unsafeGetTensorImpl());
  return out;
}

}  // namespace

void OptimizerLoad::plan(LoadPlan& plan, torch::optim::Optimizer* optimizer,
                         const std::string& name) {
  const Json scalars = Json::parse(plan.manifest.scalars_json);
  const Json section = name.empty() ? scalars : scalars.value("optimizers", Json::object());
  const auto stored = section.find(name.empty() ? "optimizer" : name);
  const std::string of = name.empty() ? "" : " of '" + name + "'";
  if (!optimizer) {
    if (stored != section.end())
      plan.note(c10::str("the optimizer state", of,
                         " of the checkpoint is not loaded: no optimizer was given"));
    return;
  }
  if (stored == section.end()) {
    if (plan.options.allow_fresh_optimizer() ||
        plan.options.strictness(StatePart::kOptimizer).missing)
      plan.note(c10::str("the checkpoint holds no optimizer state", of,
                         "; the optimizer stays as it is"));
    else
      plan.problems.push_back(
          c10::str("the checkpoint holds no optimizer state", of, ", but an optimizer was given ",
                   "(LoadOptions::allow_fresh_optimizer leaves it as it is)"));
    return;
  }
  optimizer_ = optimizer;
  const std::string type = c10::demangle(typeid(*optimizer_).name());
  if (stored->value("type", "") != type)
    plan.note(c10::str("saved by the optimizer ", stored->value("type", "?"), ", loaded into ",
                       type));
  name_parameters(plan);
  try {
    plan_groups(plan, member(*stored, "groups"));
    plan_states(plan, *stored);
  } catch (const Json::exception& error) {
    throw CorruptionError(c10::str("manifest.json: 'optimizer' is malformed: ", error.what()));
  }
  // Problems found so far would only be repeated in other words.
  if (plan.problems.empty()) build_states(plan);
}

void OptimizerLoad::name_parameters(LoadPlan& plan) {
  for (size_t i = 0; i < plan.state.parameters.size(); ++i) {
    const ShardedParameter& parameter = plan.state.parameters[i];
    std::vector<std::string> names = parameter.aliases;
    names.push_back(parameter.fqn);
    for (const std::string& name : names) {
      if (plan.options.chooses(parameter.fqn))
        live_by_name_[plan.stored_name(name)] = i;
      else
        left_out_.insert(plan.stored_name(name));
    }
  }
}

// A parameter of the checkpoint that has no place here; a problem where that is not allowed.
bool OptimizerLoad::is_left_out(LoadPlan& plan, const std::string& stored_name) const {
  return left_out_.contains(stored_name) ||
         plan.options.strictness(StatePart::kOptimizer).unexpected;
}

void OptimizerLoad::plan_groups(LoadPlan& plan, const Json& stored) {
  for (size_t group = 0; group < stored.size(); ++group) {
    for (const Json& name : member(stored[group], "params")) {
      const auto live = live_by_name_.find(name.get<std::string>());
      if (live != live_by_name_.end())
        stored_group_of_[live->second] = group;
      else if (!is_left_out(plan, name.get<std::string>()))
        plan.problems.push_back(c10::str("optimizer group ", group, " of the checkpoint holds ",
                                         name.dump(), ", which this model does not have"));
    }
  }
  matched_.assign(stored.size(), kNone);
  for (size_t group = 0; group < optimizer_->param_groups().size(); ++group)
    match_group(plan, stored, group);
  check_left_out(plan, stored);
}

// Which groups of the checkpoint the parameters of a group here come from, each with one of them.
std::map<size_t, std::string> OptimizerLoad::origins_of(LoadPlan& plan,
                                                        const std::set<const void*>& held) {
  std::map<size_t, std::string> origins;
  for (size_t i = 0; i < plan.state.parameters.size(); ++i) {
    const ShardedParameter& parameter = plan.state.parameters[i];
    if (!held.contains(parameter.leaf.unsafeGetTensorImpl())) continue;
    const auto origin = stored_group_of_.find(i);
    if (origin == stored_group_of_.end() && !plan.options.chooses(parameter.fqn)) continue;
    if (origin == stored_group_of_.end())
      plan.note(c10::str(
          "'", parameter.fqn,
          "' was in no optimizer group when it was saved; its state here is left as it is"));
    else
      origins.emplace(origin->second, parameter.fqn);
  }
  return origins;
}

void OptimizerLoad::match_group(LoadPlan& plan, const Json& stored, size_t live_index) {
  const auto held = parameters_of(optimizer_->param_groups()[live_index]);
  const std::map<size_t, std::string> origins = origins_of(plan, held);
  if (origins.empty()) {
    // An empty group has only its position to be known by.
    const bool same =
        held.empty() && live_index < stored.size() && member(stored[live_index], "params").empty();
    if (same) return take_group(plan, stored, live_index, live_index);
    plan.note(
        c10::str("optimizer group ", live_index,
                 " has no counterpart in the checkpoint; its options stay as they are"));
    return;
  }
  const auto& [group, name] = *origins.begin();
  if (origins.size() > 1)
    plan.problems.push_back(c10::str("optimizer group ", live_index, " holds '", name,
                                     "' of group ", group, " of the checkpoint and '",
                                     origins.rbegin()->second, "' of group ",
                                     origins.rbegin()->first));
  else if (matched_[group] != kNone)
    plan.problems.push_back(c10::str("group ", group,
                                     " of the checkpoint is split into the groups ",
                                     matched_[group], " and ", live_index, " here ('", name, "')"));
  else
    take_group(plan, stored, group, live_index);
}

void OptimizerLoad::take_group(LoadPlan& plan, const Json& stored, size_t stored_index,
                               size_t live_index) {
  matched_[stored_index] = live_index;
  plan_options(plan, stored, stored_index, live_index);
}

// Parameters that were optimized at the save and are not now.
void OptimizerLoad::check_left_out(LoadPlan& plan, const Json& stored) {
  std::set<const void*> held;
  for (const auto& group : optimizer_->param_groups()) held.merge(parameters_of(group));
  for (const auto& [index, group] : stored_group_of_) {
    const ShardedParameter& parameter = plan.state.parameters[index];
    if (held.contains(parameter.leaf.unsafeGetTensorImpl())) continue;
    const std::string text = c10::str("'", parameter.fqn, "' is in optimizer group ", group,
                                      " of the checkpoint and in none here");
    if (parameter.leaf.requires_grad())
      plan.problems.push_back(text);
    else
      plan.note(text +
                           "; its state is kept and is used once it is in that group's params()");
  }
  for (size_t group = 0; group < stored.size(); ++group)
    if (matched_[group] == kNone && member(stored[group], "params").empty())
      plan.problems.push_back(c10::str("optimizer group ", group,
                                       " of the checkpoint, an empty one, has no "
                                       "counterpart here"));
}

void OptimizerLoad::plan_options(LoadPlan& plan, const Json& stored, size_t stored_index,
                                 size_t live_index) {
  auto& group = optimizer_->param_groups()[live_index];
  if (!group.has_options()) return;
  const Json& options = member(stored[stored_index], "options");
  const size_t before = plan.problems.size();
  const auto problem = [&](const std::string& name, const std::string& text) {
    plan.problems.push_back(c10::str("option '", name, "' of optimizer group ", live_index, text));
  };
  Group target;
  target.options = &group.options();
  std::set<std::string> known;
  for (const auto& [name, live] : read_options(group.options())) {
    known.insert(name);
    const auto found = options.find(name);
    if (found == options.end()) {
      problem(name, ": missing in the checkpoint");
      continue;
    }
    // A switch decides which state exists and what it means; a number is taken from the checkpoint.
    if (live.isBool() && *found != live.toBool())
      problem(name,
              c10::str(" is ", found->dump(), " in the checkpoint, ", live.toBool(), " here"));
    target.values.emplace_back(name, decode_value(*found, "option '" + name + "'"));
  }
  for (const auto& [name, value] : options.items())
    if (!known.contains(name)) problem(name, ": in the checkpoint, but not here");
  if (plan.problems.size() != before) return;
  try {
    write_options(*group.options().clone(), target.values);
    groups_.push_back(std::move(target));
  } catch (const c10::Error& error) {
    problem("*", c10::str(" cannot be set: ", error.what_without_backtrace()));
  }
}

void OptimizerLoad::check_shape(LoadPlan& plan, const Json& stored, const std::string& stored_name,
                                const ShardedParameter& parameter) {
  stored_shape_ = member(member(stored, "shapes"), stored_name.c_str()).get<std::vector<int64_t>>();
  if (stored_shape_ == parameter.shape ||
      plan.may_resize(parameter.fqn, stored_shape_, parameter.shape))
    return;
  plan.problems.push_back(c10::str("the optimizer state of '", parameter.fqn, "' is for shape ",
                                   shape_text(stored_shape_), ", the parameter here has ",
                                   shape_text(parameter.shape)));
}

void OptimizerLoad::plan_state(LoadPlan& plan, const Json& stored, const std::string& name,
                               const std::vector<const StoredTensor*>& tensors) {
  const auto live = live_by_name_.find(name);
  if (live == live_by_name_.end()) {
    if (!left_out_.contains(name))
      plan.unexpected(StatePart::kOptimizer, "optim.state." + name,
                      "optimizer state of '" + name + "', which this model does not have");
    return;
  }
  const ShardedParameter& parameter = plan.state.parameters[live->second];
  check_shape(plan, stored, name, parameter);
  OptimStateSerializer::Wanted wanted;
  wanted.parameter = parameter.fqn;
  wanted.leaf = parameter.leaf;
  const Json& others = member(member(stored, "states"), name.c_str());
  if (!state_values(plan, others, parameter, tensors, wanted.values)) return;
  const auto group = stored_group_of_.find(live->second);
  StateKeys state{parameter.fqn, group == stored_group_of_.end() ? kNone : group->second, {}};
  for (const auto& [key, value] : wanted.values) state.keys[key] = value.isInt();
  keys_.push_back(std::move(state));
  wanted_.push_back(std::move(wanted));
  with_state_.insert(live->second);
}

void OptimizerLoad::plan_states(LoadPlan& plan, const Json& stored) {
  std::map<std::string, std::vector<const StoredTensor*>> tensors;
  for (const StoredTensor& tensor : plan.manifest.tensors)
    if (!tensor.parameter.empty()) tensors[tensor.parameter].push_back(&tensor);
  for (const auto& [name, others] : member(stored, "states").items())
    plan_state(plan, stored, name, tensors[name]);
  for (std::string& line : missing_state_keys(keys_))
    plan.problems.push_back(std::move(line) + " (in the checkpoint)");
  for (const auto& [index, group] : stored_group_of_) {
    const ShardedParameter& parameter = plan.state.parameters[index];
    void* leaf = parameter.leaf.unsafeGetTensorImpl();
    if (with_state_.contains(index) || optimizer_->state().find(leaf) == optimizer_->state().end())
      continue;
    absent_.push_back(leaf);
    plan.note("'" + parameter.fqn +
              "' has no optimizer state in the checkpoint; its state here is removed");
  }
}

bool OptimizerLoad::state_values(LoadPlan& plan, const Json& others,
                                 const ShardedParameter& parameter,
                                 const std::vector<const StoredTensor*>& tensors,
                                 ArchiveValues& out) {
  std::map<std::string, torch::Tensor> list_items;
  const size_t before = plan.problems.size();
  for (const StoredTensor* stored : tensors) {
    if (stored->integer) {
      out.emplace_back(stored->state_key, *stored->integer);
      continue;
    }
    torch::Tensor tensor = state_tensor(plan, *stored, parameter);
    const size_t bracket = stored->state_key.rfind('[');
    const bool listed =
        bracket != std::string::npos && others.contains(stored->state_key.substr(0, bracket));
    if (listed)
      list_items[stored->state_key] = tensor;
    else
      out.emplace_back(stored->state_key, tensor);
  }
  for (const auto& [key, value] : others.items()) {
    if (!value.is_object() || !value.contains("tensors")) {
      out.emplace_back(key, decode_value(value, "optimizer state '" + key + "'"));
      continue;
    }
    c10::List<torch::Tensor> list;
    for (size_t i = 0; i < value.at("tensors").get<size_t>(); ++i) {
      const auto item = list_items.find(c10::str(key, "[", i, "]"));
      if (item == list_items.end()) {
        plan.problems.push_back(
            c10::str("the optimizer state of '", parameter.fqn, "' lacks '", key, "[", i, "]'"));
        break;
      }
      list.push_back(item->second);
    }
    out.emplace_back(key, list);
  }
  return plan.problems.size() == before;
}

torch::Tensor OptimizerLoad::state_tensor(LoadPlan& plan, const StoredTensor& stored,
                                          const ShardedParameter& parameter) {
  const auto type = scalar_type(stored.dtype);
  if (!type) {
    plan.problems.push_back("'" + stored.key + "' has the dtype " + stored.dtype +
                            ", which is not known here");
    return {};
  }
  if (stored.placement != StoredPlacement::kSharded) {
    const torch::Device device =
        stored.shape.empty() ? torch::Device(torch::kCPU) : parameter.leaf.device();
    return plan.reserve(stored, {0, stored.rows()}, stored.shape, *type, device);
  }
  const int64_t rows = stored_shape_.empty() ? 1 : stored_shape_[0];
  if (stored.rows() != rows) {
    plan.problems.push_back(c10::str("'", stored.key, "' has ", stored.rows(), " rows, its parameter ",
                                     rows, " in the checkpoint"));
    return {};
  }
  torch::ScalarType live_type = *type;
  const bool follows = stored.shape == stored_shape_;
  const StoredTensor* weight =
      plan.manifest.find(plan.spec.key_prefix() + "model." + stored.parameter);
  if (follows && weight && weight->dtype == stored.dtype &&
      plan.spec.dtype_policy() == DtypePolicy::kConvert && *type != parameter.leaf.scalar_type()) {
    live_type = parameter.leaf.scalar_type();
    plan.report.converted.push_back(stored.key);
    plan.note(c10::str("'", stored.key, "' converted from ", stored.dtype, " with its parameter"));
  }
  std::vector<int64_t> local = stored.shape;
  if (follows)
    local = parameter.leaf.sizes().vec();
  else
    local[0] = parameter.row_end - parameter.row_begin;
  torch::Tensor rest;
  if (stored_shape_ != parameter.shape) {
    plan.report.reshaped.push_back(stored.key);
    rest = rest_of(stored, parameter, local, live_type);
  }
  return plan.reserve(stored, common_rows(parameter.row_begin, parameter.row_end, stored.rows()),
                      local, live_type, parameter.leaf.device(), rest);
}

// What this optimizer has under the same key, or zeros.
torch::Tensor OptimizerLoad::rest_of(const StoredTensor& stored, const ShardedParameter& parameter,
                                     torch::IntArrayRef local_shape, torch::ScalarType dtype) const {
  const auto state = optimizer_->state().find(parameter.leaf.unsafeGetTensorImpl());
  if (state != optimizer_->state().end())
    for (const auto& [key, value] : OptimStateSerializer::read(*state->second, parameter.fqn))
      if (key == stored.state_key && value.isTensor() && value.toTensor().sizes() == local_shape)
        return value.toTensor();
  return torch::zeros(local_shape, parameter.leaf.options().dtype(dtype).requires_grad(false));
}

void check_states_declared(LoadPlan& plan) {
  const Json scalars = Json::parse(plan.manifest.scalars_json);
  std::set<std::string> declared;
  const auto declare = [&](const Json& optimizer) {
    for (const auto& [name, others] : member(optimizer, "states").items()) declared.insert(name);
  };
  if (scalars.contains("optimizer")) declare(scalars["optimizer"]);
  for (const auto& optimizer : scalars.value("optimizers", Json::object())) declare(optimizer);
  for (const StoredTensor& tensor : plan.manifest.tensors)
    if (!tensor.parameter.empty() && declared.insert(tensor.parameter).second)
      plan.problems.push_back("optimizer state of '" + tensor.parameter +
                              "' is stored, but not declared");
}

void OptimizerLoad::build_states(LoadPlan& plan) {
  OptimStateSerializer serializer(*optimizer_, plan.state.factory);
  states_ = serializer.build(wanted_, plan.problems);
}

void OptimizerLoad::commit() {
  if (!optimizer_) return;
  for (size_t i = 0; i < wanted_.size(); ++i)
    optimizer_->state()[wanted_[i].leaf.unsafeGetTensorImpl()] = std::move(states_[i]);
  for (void* leaf : absent_) optimizer_->state().erase(leaf);
  for (const Group& group : groups_) write_options(*group.options, group.values);
  complete_adagrad(*optimizer_);
}

}  // namespace tessera::checkpoint
