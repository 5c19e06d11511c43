// Finds optimizer state that lacks a key, by comparing parameters with each other: there is no list
// of keys that an optimizer should have.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace tessera::checkpoint {

struct StateKeys {
  std::string parameter;
  size_t group = 0;
  std::map<std::string, bool> keys;  // key -> whether its value is an integer
};

// One line for each key that a parameter with state lacks although another one of its group has it,
// or, for integers (step counts), although all parameters of all other groups have it. Groups may
// differ in the tensors they keep (amsgrad), but not in whether steps are counted.
std::vector<std::string> missing_state_keys(const std::vector<StateKeys>& states);

}  // namespace tessera::checkpoint
