// Decides which parameter belongs to which unit. Reads the module tree, changes nothing.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "tessera/fsdp.h"

namespace tessera::fsdp {

struct AssignedParam {
  std::string fqn;
  std::vector<std::string> aliases;
  torch::Tensor tensor;
  int unit = 0;  // index into UnitAssignment::unit_names
};

struct UnitAssignment {
  std::vector<std::string> unit_names;  // the root unit, "(root)", is first and may be empty
  std::vector<AssignedParam> params;    // in the order of named_parameters()
  bool units_by_default = false;        // no predicate was given
};

// Throws UsageError naming module and parameter for what cannot be sharded: ParameterList and
// ParameterDict (their forward reads the registry), already sharded, sparse, quantized, meta or
// inference tensors, and parameters that carry a gradient.
UnitAssignment assign_units(torch::nn::Module& module, const FsdpOptions& options);

}  // namespace tessera::fsdp
