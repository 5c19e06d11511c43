#include "checkpoint/optim_state.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <torch/torch.h>

#include <algorithm>
#include <set>

#include "checkpoint/state_keys.h"
#include "tessera/error.h"

namespace tessera::checkpoint {

namespace {

using torch::optim::Optimizer;
using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

std::string reason_of(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  const std::string text = torch_error ? torch_error->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

std::string decimal(const void* address) {
  return std::to_string(reinterpret_cast<uintptr_t>(address));
}

OutputArchive group_archive(const torch::optim::OptimizerParamGroup& group) {
  OutputArchive archive;
  archive.write("params/size", torch::tensor(static_cast<int64_t>(group.params().size())));
  for (size_t i = 0; i < group.params().size(); ++i)
    archive.write("params/" + std::to_string(i),
                  c10::IValue(decimal(group.params()[i].unsafeGetTensorImpl())));
  OutputArchive options;
  group.options().serialize(options);
  archive.write("options", options);
  return archive;
}

// What Optimizer::load reads: the optimizer's groups as they are and the wanted states, keyed as
// Optimizer::save keys them.
OutputArchive load_archive(const Optimizer& optimizer,
                           const std::vector<OptimStateSerializer::Wanted>& wanted) {
  OutputArchive archive;
  archive.write("pytorch_version", c10::IValue("1.5.0"));
  OutputArchive states;
  for (const auto& item : wanted) {
    OutputArchive state = output_archive(item.values);
    states.write(decimal(item.leaf.unsafeGetTensorImpl()), state);
  }
  archive.write("state", states);
  OutputArchive groups;
  const auto& live = optimizer.param_groups();
  groups.write("param_groups/size", torch::tensor(static_cast<int64_t>(live.size())));
  for (size_t i = 0; i < live.size(); ++i) {
    OutputArchive group = group_archive(live[i]);
    groups.write("param_groups/" + std::to_string(i), group);
  }
  archive.write("param_groups", groups);
  return archive;
}

std::set<std::string> keys_of(const ArchiveValues& values) {
  std::set<std::string> keys;
  for (const auto& [key, value] : values) keys.insert(key);
  return keys;
}

// Empty where the object holds exactly the wanted keys; else what differs.
std::string key_difference(const OptimState& built, const OptimStateSerializer::Wanted& wanted) {
  const std::set<std::string> have = keys_of(OptimStateSerializer::read(built, wanted.parameter));
  const std::set<std::string> want = keys_of(wanted.values);
  std::string text;
  for (const std::string& key : have)
    if (!want.contains(key)) text += c10::str(text.empty() ? "" : ", ", "lacks '", key, "'");
  for (const std::string& key : want)
    if (!have.contains(key))
      text +=
          c10::str(text.empty() ? "" : ", ", "has '", key, "', which this optimizer does not know");
  return text;
}

}  // namespace

ArchiveValues OptimStateSerializer::read(const OptimState& state, const std::string& parameter) {
  ArchiveValues values;
  try {
    values = values_of(state);
  } catch (const std::exception& error) {
    throw UsageError(c10::str("the optimizer state of '", parameter, "' (type ",
                              c10::demangle(typeid(state).name()),
                              ") cannot be saved: its serialize() says: ", reason_of(error)));
  }
  // An undefined tensor is LibTorch's way to say that there is none.
  std::erase_if(values, [](const auto& item) {
    return item.second.isTensor() && !item.second.toTensor().defined();
  });
  return values;
}

OptimStateSerializer::StateMap OptimStateSerializer::build_by_load(
    const std::vector<Wanted>& wanted, std::string& reason) {
  StateMap aside;
  std::swap(aside, optimizer_.state());
  try {
    OutputArchive archive = load_archive(optimizer_, wanted);
    InputArchive input = input_archive(archive);
    optimizer_.load(input);
  } catch (const std::exception& error) {
    reason = reason_of(error);
    optimizer_.state().clear();
  }
  std::swap(aside, optimizer_.state());
  return aside;
}

std::unique_ptr<OptimState> OptimStateSerializer::build_one(const Wanted& wanted,
                                                            const OptimState* exemplar,
                                                            const std::string& load_reason,
                                                            std::string& problem) const {
  std::string reasons = load_reason.empty() ? "" : "its load() says: " + load_reason;
  const auto fill = [&](std::unique_ptr<OptimState> state) -> std::unique_ptr<OptimState> {
    try {
      OutputArchive archive = output_archive(wanted.values);
      InputArchive input = input_archive(archive);
      state->serialize(input);
      const std::string difference = key_difference(*state, wanted);
      if (difference.empty()) return state;
      reasons = "the stored state " + difference;
    } catch (const std::exception& error) {
      reasons = "its serialize() says: " + reason_of(error);
    }
    return nullptr;
  };
  std::unique_ptr<OptimState> state;
  if (factory_) state = fill(factory_());
  if (!state && exemplar) state = fill(exemplar->clone());
  if (!state)
    problem =
        c10::str("the optimizer state of '", wanted.parameter, "' cannot be created: ",
                 reasons.empty() ? "this optimizer has no state to copy and no load()" : reasons,
                 exemplar || factory_ ? "" : "; register a TrainState::state_factory");
  return state;
}

std::vector<std::unique_ptr<OptimState>> OptimStateSerializer::build(
    const std::vector<Wanted>& wanted, std::vector<std::string>& problems) {
  std::vector<std::unique_ptr<OptimState>> states;
  if (wanted.empty()) return states;
  std::string reason;
  StateMap built = build_by_load(wanted, reason);
  const OptimState* exemplar = nullptr;
  if (!built.empty())
    exemplar = built.begin()->second.get();
  else if (!optimizer_.state().empty())
    exemplar = optimizer_.state().begin()->second.get();
  for (const Wanted& item : wanted) {
    const auto found = built.find(item.leaf.unsafeGetTensorImpl());
    if (found != built.end() && key_difference(*found->second, item).empty()) {
      states.push_back(std::move(found->second));
      continue;
    }
    std::string problem;
    states.push_back(build_one(item, exemplar, reason, problem));
    if (!problem.empty()) problems.push_back(problem);
  }
  return states;
}

void assert_states_complete(const Optimizer& optimizer,
                            const std::vector<ShardedParameter>& parameters) {
  std::map<const void*, size_t> groups;
  for (size_t i = 0; i < optimizer.param_groups().size(); ++i)
    for (const torch::Tensor& parameter : optimizer.param_groups()[i].params())
      groups[parameter.unsafeGetTensorImpl()] = i;
  std::vector<StateKeys> states;
  for (const ShardedParameter& parameter : parameters) {
    const auto state = optimizer.state().find(parameter.leaf.unsafeGetTensorImpl());
    if (state == optimizer.state().end()) continue;
    StateKeys keys{parameter.fqn, groups.size(), {}};
    const auto group = groups.find(parameter.leaf.unsafeGetTensorImpl());
    if (group != groups.end()) keys.group = group->second;
    for (const auto& [key, value] : OptimStateSerializer::read(*state->second, parameter.fqn))
      keys.keys[key] = value.isInt();
    states.push_back(std::move(keys));
  }
  const std::vector<std::string> missing = missing_state_keys(states);
  if (missing.empty()) return;
  throw UsageError(c10::str("incomplete optimizer state:\n  ", c10::Join("\n  ", missing)));
}

ArchiveValues read_options(const torch::optim::OptimizerOptions& options) {
  return values_of(options);
}

void write_options(torch::optim::OptimizerOptions& options, const ArchiveValues& values) {
  OutputArchive archive = output_archive(values);
  InputArchive input = input_archive(archive);
  options.serialize(input);
}

}  // namespace tessera::checkpoint
