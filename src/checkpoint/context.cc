#include "checkpoint/context.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/StringUtil.h>
#include <torch/torch.h>

#include <algorithm>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/dtype.h"
#include "checkpoint/item_value.h"
#include "checkpoint/keys.h"
#include "checkpoint/optim_state.h"
#include "checkpoint/scheduler_access.h"
#include "tessera/error.h"

namespace tessera::checkpoint {

namespace {

using Json = nlohmann::json;

std::string stored_dtype(const torch::Tensor& tensor, const std::string& key) {
  if (tensor.layout() != torch::kStrided)
    throw UsageError(c10::str("'", key, "' is not a dense tensor and cannot be saved"));
  const auto name = dtype_name(tensor.scalar_type());
  if (!name)
    throw UsageError(c10::str("'", key, "' has the dtype ", tensor.scalar_type(),
                              ", which the safetensors container cannot hold"));
  return *name;
}

std::vector<int64_t> sizes_of(const torch::Tensor& tensor) { return tensor.sizes().vec(); }

// How the leading dimension of a state tensor compares with the rows of its parameter here.
enum class RowMatch { kParameterShaped, kRowWise, kOther };

RowMatch row_match(const torch::Tensor& value, const torch::Tensor& leaf) {
  if (value.sizes() == leaf.sizes()) return RowMatch::kParameterShaped;
  return has_rows_of(value, leaf) ? RowMatch::kRowWise : RowMatch::kOther;
}

class Builder {
 public:
  Builder(const LiveState& state, const CkptSpec& spec) : state_(state), spec_(spec) {}

  void run() {
    if (spec_.with_model()) add_model();
    if (spec_.with_optimizer()) {
      if (state_.optimizer) scalars["optimizer"] = add_optimizer(*state_.optimizer);
      for (const auto& [name, optimizer] : state_.more_optimizers)
        scalars["optimizers"][name] = add_optimizer(*optimizer);
    }
    if (spec_.with_rng()) {
      add_rng("cpu", state_.generator);
      add_rng("cuda", state_.device_generator);
    }
    if (spec_.with_items()) add_items();
    check_keys_unique();
  }

  std::vector<StateEntry> entries;
  Json scalars = Json::object();

 private:
  void add_model() {
    for (const ShardedParameter& parameter : state_.parameters) {
      StateEntry entry;
      entry.key = model_key(spec_, parameter.fqn);
      entry.role = StateRole::kParameter;
      entry.name = parameter.fqn;
      entry.tensor = parameter.leaf;
      entry.dtype = stored_dtype(parameter.leaf, entry.key);
      entry.shape = parameter.shape;
      entry.placement = Placement::kSharded;
      entry.row_begin = parameter.row_begin;
      entry.row_end = parameter.row_end;
      entries.push_back(std::move(entry));
    }
    for (const NamedBuffer& buffer : state_.buffers) {
      if (!buffer.tensor.defined()) continue;
      StateEntry entry;
      entry.key = model_key(spec_, buffer.fqn);
      entry.role = StateRole::kBuffer;
      entry.name = buffer.fqn;
      entry.tensor = buffer.tensor;
      entry.dtype = stored_dtype(buffer.tensor, entry.key);
      entry.shape = sizes_of(buffer.tensor);
      entries.push_back(std::move(entry));
    }
  }

  Json add_optimizer(const torch::optim::Optimizer& optimizer) {
    const LeafNames leaves = leaf_index(state_.parameters);
    Json described = {{"type", c10::demangle(typeid(optimizer).name())},
                      {"groups", describe_groups(optimizer, state_, leaves)},
                      {"states", Json::object()},
                      {"shapes", Json::object()}};
    const std::vector<ArchiveValues> states = read_states(optimizer, leaves);
    const std::set<std::string> irregular = irregular_keys(states);
    for (size_t i = 0; i < states.size(); ++i) {
      const ShardedParameter& parameter = state_.parameters[i];
      if (optimizer.state().find(parameter.leaf.unsafeGetTensorImpl()) == optimizer.state().end())
        continue;
      described["shapes"][parameter.fqn] = parameter.shape;
      Json& others = described["states"][parameter.fqn] = Json::object();
      for (const auto& [key, value] : states[i])
        add_state_value(parameter, key, value, irregular.contains(key), others);
    }
    return described;
  }

  // By parameter, in the order of `parameters`: the optimizer's own order is that of a hash table.
  std::vector<ArchiveValues> read_states(const torch::optim::Optimizer& optimizer,
                                         const LeafNames& leaves) {
    for (const auto& [leaf, object] : optimizer.state())
      if (!leaves.contains(leaf))
        throw UsageError(
            "the optimizer holds state of a tensor that is no parameter of the sharded module: it "
            "was built "
            "before fully_shard(), or its parameters were replaced; build it after fully_shard()");
    std::vector<ArchiveValues> states;
    for (const ShardedParameter& parameter : state_.parameters) {
      const auto found = optimizer.state().find(parameter.leaf.unsafeGetTensorImpl());
      const bool absent = found == optimizer.state().end();
      states.push_back(absent ? ArchiveValues{}
                              : OptimStateSerializer::read(*found->second, parameter.fqn));
    }
    return states;
  }

  // State keys that for some parameter have a tensor without the parameter's rows.
  std::set<std::string> irregular_keys(const std::vector<ArchiveValues>& states) const {
    std::set<std::string> keys;
    for (size_t i = 0; i < states.size(); ++i)
      for (const auto& [key, value] : states[i])
        if (value.isTensor() &&
            row_match(value.toTensor(), state_.parameters[i].leaf) == RowMatch::kOther)
          keys.insert(key);
    return keys;
  }

  void add_state_value(const ShardedParameter& parameter, const std::string& key,
                       const c10::IValue& value, bool irregular, Json& others) {
    if (value.isTensor()) {
      add_state_tensor(parameter, key, value.toTensor(), irregular);
    } else if (value.isInt()) {
      StateEntry entry = state_entry(parameter, key);
      entry.integer = value.toInt();
      entry.dtype = "F32";
      entries.push_back(std::move(entry));
    } else if (value.isTensorList()) {
      const auto tensors = value.toTensorVector();
      for (size_t i = 0; i < tensors.size(); ++i)
        add_state_tensor(parameter, c10::str(key, "[", i, "]"), tensors[i], irregular);
      others[key] = {{"tensors", tensors.size()}};
    } else {
      others[key] =
          encode_value(value, c10::str("optimizer state '", key, "' of '", parameter.fqn, "'"));
    }
  }

  StateEntry state_entry(const ShardedParameter& parameter, const std::string& key) const {
    StateEntry entry;
    entry.key = optimizer_key(spec_, parameter.fqn, key);
    entry.role = StateRole::kOptimizer;
    entry.name = parameter.fqn;
    entry.state_key = key;
    return entry;
  }

  void add_state_tensor(const ShardedParameter& parameter, const std::string& key,
                        const torch::Tensor& tensor, bool irregular) {
    StateEntry entry = state_entry(parameter, key);
    entry.tensor = tensor;
    entry.dtype = stored_dtype(tensor, entry.key);
    entry.shape = sizes_of(tensor);
    const RowMatch match = row_match(tensor, parameter.leaf);
    // A scalar state of a 0-dim parameter looks like its shape; what other parameters hold under
    // the same key tells.
    const bool certain = match == RowMatch::kParameterShaped && parameter.shape.size() >= 2;
    if (match != RowMatch::kOther && (certain || !irregular)) {
      entry.placement = Placement::kSharded;
      entry.row_begin = parameter.row_begin;
      entry.row_end = parameter.row_end;
      if (match == RowMatch::kParameterShaped)
        entry.shape = parameter.shape;
      else
        entry.shape[0] = parameter.shape.empty() ? 1 : parameter.shape[0];
    }
    entries.push_back(std::move(entry));
  }

  void add_rng(const std::string& device, at::Generator generator) {
    if (!generator.defined()) return;
    StateEntry entry;
    entry.key = rng_key(spec_, device);
    entry.role = StateRole::kRng;
    {
      const std::lock_guard<std::mutex> lock(generator.mutex());
      entry.tensor = generator.get_state();
    }
    entry.dtype = stored_dtype(entry.tensor, entry.key);
    entry.shape = sizes_of(entry.tensor);
    entry.placement = Placement::kPerRank;
    entries.push_back(std::move(entry));
  }

  void add_items() {
    Json& schedulers = scalars["schedulers"] = Json::object();
    for (const auto& [name, scheduler] : state_.schedulers)
      schedulers[name] = scheduler_step(*scheduler);
    Json& items = scalars["items"] = Json::object();
    for (const auto& [name, item] : state_.items)
      items[name] = encode_item(item.get(), "item '" + name + "'");
    for (const auto& [name, tensor] : state_.tensors) add_item_tensor(name, tensor);
  }

  void add_item_tensor(const std::string& name, const ItemTensor& item) {
    StateEntry entry;
    entry.key = item_key(spec_, name);
    entry.role = StateRole::kItem;
    entry.name = name;
    entry.tensor = item.tensor();
    entry.dtype = stored_dtype(entry.tensor, entry.key);
    entry.shape = sizes_of(entry.tensor);
    if (item.spread() == ItemTensor::Spread::kPerRank) entry.placement = Placement::kPerRank;
    if (item.spread() == ItemTensor::Spread::kShardedLike)
      shard_like(entry, parameter_named(item.parameter(), entry.key));
    entries.push_back(std::move(entry));
  }

  const ShardedParameter& parameter_named(const std::string& fqn, const std::string& key) const {
    for (const ShardedParameter& parameter : state_.parameters) {
      const auto& aliases = parameter.aliases;
      if (parameter.fqn == fqn || std::find(aliases.begin(), aliases.end(), fqn) != aliases.end())
        return parameter;
    }
    throw UsageError(c10::str("'", key, "' is to be sharded like '", fqn,
                              "', which is no parameter of the sharded model"));
  }

  static void shard_like(StateEntry& entry, const ShardedParameter& parameter) {
    const int64_t rows = parameter.row_end - parameter.row_begin;
    if (parameter.shape.empty() || entry.shape.empty() || entry.shape[0] != rows)
      throw UsageError(c10::str("'", entry.key, "' of shape ", entry.tensor.sizes(),
                                " cannot be sharded like '", parameter.fqn, "', of which ", rows,
                                " rows are here"));
    entry.placement = Placement::kSharded;
    entry.shape[0] = parameter.shape[0];
    entry.row_begin = parameter.row_begin;
    entry.row_end = parameter.row_end;
  }

  void check_keys_unique() const {
    std::set<std::string> keys;
    for (const StateEntry& entry : entries)
      if (!keys.insert(entry.key).second)
        throw UsageError(
            c10::str("two values have the key '", entry.key,
                     "': rename a submodule, parameter or state key that contains a dot"));
  }

  const LiveState& state_;
  const CkptSpec& spec_;
};

std::string trainable_outside(const LiveState& state, const std::set<const void*>& held) {
  std::string names;
  for (const ShardedParameter& parameter : state.parameters)
    if (parameter.leaf.requires_grad() && !held.contains(parameter.leaf.unsafeGetTensorImpl()))
      names += c10::str(names.empty() ? "" : ", ", parameter.fqn);
  return names.empty() ? "" : c10::str(" Trainable parameters that it does not hold: ", names, ".");
}

}  // namespace

bool has_rows_of(const torch::Tensor& value, const torch::Tensor& leaf) {
  return value.dim() >= 1 && value.size(0) == (leaf.dim() == 0 ? 1 : leaf.size(0));
}

LeafNames leaf_index(const std::vector<ShardedParameter>& parameters) {
  LeafNames leaves;
  for (size_t i = 0; i < parameters.size(); ++i)
    leaves.emplace(parameters[i].leaf.unsafeGetTensorImpl(), i);
  return leaves;
}

Json describe_groups(const torch::optim::Optimizer& optimizer, const LiveState& state,
                     const LeafNames& leaves) {
  std::set<const void*> held;
  for (const auto& group : optimizer.param_groups())
    for (const torch::Tensor& parameter : group.params())
      held.insert(parameter.unsafeGetTensorImpl());
  Json groups = Json::array();
  for (const auto& group : optimizer.param_groups()) {
    const std::string place = c10::str("optimizer group ", groups.size());
    Json names = Json::array();
    for (const torch::Tensor& parameter : group.params()) {
      const auto found = leaves.find(parameter.unsafeGetTensorImpl());
      if (found == leaves.end())
        throw UsageError(c10::str(
            place, " holds a tensor of shape ", parameter.sizes(), " (its number ", names.size(),
            ") that is no parameter of the sharded module: build the optimizer after "
            "fully_shard(), from model->parameters().",
            trainable_outside(state, held)));
      names.push_back(state.parameters[found->second].fqn);
    }
    Json options = Json::object();
    if (group.has_options())
      for (const auto& [name, value] : read_options(group.options()))
        options[name] = encode_value(value, c10::str("option '", name, "' of ", place));
    groups.push_back({{"params", std::move(names)}, {"options", std::move(options)}});
  }
  return groups;
}

StateDictContext ContextBuilder::build(const LiveState& state, const CkptSpec& spec) {
  Builder builder(state, spec);
  builder.run();
  StateDictContext context;
  context.spec_ = spec;
  context.entries_ = std::move(builder.entries);
  context.scalars_json_ = builder.scalars.dump();
  return context;
}

}  // namespace tessera::checkpoint

namespace tessera {

std::vector<const StateEntry*> StateDictContext::entries_of(const std::string& prefix) const {
  std::vector<const StateEntry*> found;
  for (const StateEntry& entry : entries_)
    if (entry.key.starts_with(prefix)) found.push_back(&entry);
  return found;
}

}  // namespace tessera
