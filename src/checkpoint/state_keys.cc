#include "checkpoint/state_keys.h"

#include <fmt/format.h>

#include <set>

namespace tessera::checkpoint {

namespace {

// Integer keys that every parameter outside of `group` has; none where there is no such parameter.
std::set<std::string> counted_elsewhere(const std::vector<StateKeys>& states, size_t group) {
  std::set<std::string> common;
  bool first = true;
  for (const StateKeys& state : states) {
    if (state.group == group) continue;
    std::set<std::string> kept;
    for (const auto& [key, integer] : state.keys)
      if (integer && (first || common.contains(key))) kept.insert(key);
    common = std::move(kept);
    first = false;
  }
  return common;
}

}  // namespace

std::vector<std::string> missing_state_keys(const std::vector<StateKeys>& states) {
  std::map<size_t, std::set<std::string>> expected;
  for (const StateKeys& state : states)
    for (const auto& [key, integer] : state.keys) expected[state.group].insert(key);
  for (auto& [group, keys] : expected) keys.merge(counted_elsewhere(states, group));
  std::vector<std::string> lines;
  for (const StateKeys& state : states)
    for (const std::string& key : expected[state.group])
      if (!state.keys.contains(key))
        lines.push_back(fmt::format(
            "the optimizer state of '{}' lacks '{}', which other parameters of the optimizer have",
            state.parameter, key));
  return lines;
}

}  // namespace tessera::checkpoint
