#include "fsdp/unit_assignment.h"

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/parameterdict.h>
#include <torch/nn/modules/container/parameterlist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/torch.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "fsdp/keyed_tensor.h"
#include "tessera/error.h"

namespace tessera::fsdp {
namespace {

std::string join(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

void check_module(torch::nn::Module& module, const std::string& fqn) {
  const bool list = dynamic_cast<torch::nn::ParameterListImpl*>(&module) != nullptr;
  const bool dict = dynamic_cast<torch::nn::ParameterDictImpl*>(&module) != nullptr;
  if (!list && !dict) return;
  throw UsageError("module " + (fqn.empty() ? "(root)" : fqn) + " is a " + (list ? "ParameterList" : "ParameterDict") +
                   ", whose users read the registry that holds the sharded leaves after wrapping: hold its "
                   "tensors as members by register_parameter instead");
}

void check_param(const torch::Tensor& tensor, const std::string& fqn) {
  const auto refuse = [&](const std::string& why) { throw UsageError("cannot shard parameter " + fqn + ": " + why); };
  if (tensor.key_set().has(kTouchKey)) refuse("it is sharded already; call fully_shard() once, on the outermost module");
  if (tensor.layout() != torch::kStrided) refuse("its layout is not strided");
  if (tensor.is_quantized()) refuse("it is quantized");
  if (tensor.is_meta()) refuse("it is on the meta device and has no values");
  if (tensor.is_inference()) refuse("it was made in InferenceMode and cannot be trained");
  if (tensor.grad().defined()) refuse("it has a gradient; call zero_grad() before fully_shard()");
  if (!tensor.is_leaf()) refuse("it is the result of a computation, not a leaf");
}

// Units form a tree; a parameter that several of them use belongs to their nearest common ancestor.
class Assigner {
 public:
  explicit Assigner(const FsdpOptions& options) : options_(options) {
    out_.unit_names.push_back("(root)");
    parents_.push_back(-1);
    out_.units_by_default = options.unit_predicates().empty();
  }

  UnitAssignment run(torch::nn::Module& root) {
    if (out_.units_by_default) find_outermost_containers(root);
    visit(root, "", 0);
    return std::move(out_);
  }

 private:
  bool starts_unit(const std::string& fqn, torch::nn::Module& module) const {
    if (fqn.empty()) return false;
    if (out_.units_by_default) return default_units_.count(&module) != 0;
    return std::any_of(options_.unit_predicates().begin(), options_.unit_predicates().end(),
                       [&](const auto& predicate) { return predicate(fqn, module); });
  }

  void find_outermost_containers(torch::nn::Module& module) {
    const bool container = dynamic_cast<torch::nn::ModuleListImpl*>(&module) != nullptr ||
                           dynamic_cast<torch::nn::SequentialImpl*>(&module) != nullptr;
    for (const auto& child : module.children()) {
      if (container) {
        default_units_.insert(child.get());
      } else {
        find_outermost_containers(*child);
      }
    }
  }

  void visit(torch::nn::Module& module, const std::string& fqn, int unit) {
    check_module(module, fqn);
    // A shared submodule starts its unit once; its other places only add names.
    const auto known = unit_of_module_.find(&module);
    if (known != unit_of_module_.end()) {
      unit = known->second;
    } else if (starts_unit(fqn, module)) {
      out_.unit_names.push_back(fqn);
      parents_.push_back(unit);
      unit = static_cast<int>(out_.unit_names.size()) - 1;
      unit_of_module_[&module] = unit;
    }
    for (const auto& item : module.named_parameters(/*recurse=*/false)) {
      if (item.value().defined()) add(item.value(), join(fqn, item.key()), unit);
    }
    for (const auto& child : module.named_children()) visit(*child.value(), join(fqn, child.key()), unit);
  }

  void add(const torch::Tensor& tensor, const std::string& fqn, int unit) {
    const auto [entry, is_new] = index_.try_emplace(tensor.unsafeGetTensorImpl(), out_.params.size());
    if (is_new) {
      check_param(tensor, fqn);
      out_.params.push_back({fqn, {}, tensor, unit});
      return;
    }
    AssignedParam& param = out_.params[entry->second];
    param.aliases.push_back(fqn);
    param.unit = common_ancestor(param.unit, unit);
  }

  int common_ancestor(int a, int b) const {
    std::unordered_set<int> above;
    for (int unit = a; unit >= 0; unit = parents_[static_cast<size_t>(unit)]) above.insert(unit);
    while (above.count(b) == 0) b = parents_[static_cast<size_t>(b)];
    return b;
  }

  const FsdpOptions& options_;
  UnitAssignment out_;
  std::vector<int> parents_;
  std::unordered_set<const torch::nn::Module*> default_units_;
  std::unordered_map<const torch::nn::Module*, int> unit_of_module_;
  std::unordered_map<const c10::TensorImpl*, size_t> index_;
};

}  // namespace

UnitAssignment assign_units(torch::nn::Module& module, const FsdpOptions& options) {
  return Assigner(options).run(module);
}

}  // namespace tessera::fsdp
