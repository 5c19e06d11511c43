#include "launch/environment.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <random>

namespace tessera::launch {
namespace {

bool is_named(const std::string& entry, std::string_view name) {
  return entry.size() > name.size() && entry[name.size()] == '=' &&
         entry.compare(0, name.size(), name) == 0;
}

}  // namespace

EnvironmentBlock::EnvironmentBlock(const char* const* base) {
  for (; base != nullptr && *base != nullptr; ++base) entries_.emplace_back(*base);
}

void EnvironmentBlock::set(std::string_view name, std::string_view value) {
  std::erase_if(entries_, [name](const std::string& entry) { return is_named(entry, name); });
  entries_.push_back(fmt::format("{}={}", name, value));
}

std::optional<std::string> EnvironmentBlock::get(std::string_view name) const {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [name](const std::string& e) { return is_named(e, name); });
  if (found == entries_.end()) return std::nullopt;
  return found->substr(name.size() + 1);
}

std::vector<char*> EnvironmentBlock::pointers() {
  std::vector<char*> result;
  result.reserve(entries_.size() + 1);
  for (std::string& entry : entries_) result.push_back(entry.data());
  result.push_back(nullptr);
  return result;
}

void set_rank_variables(EnvironmentBlock& block, const RankEnvironment& values) {
  const std::string rank = std::to_string(values.rank);
  const std::string world = std::to_string(values.world_size);
  block.set("RANK", rank);
  block.set("WORLD_SIZE", world);
  block.set("LOCAL_RANK", rank);
  block.set("LOCAL_WORLD_SIZE", world);
  block.set("GROUP_RANK", "0");
  block.set("GROUP_WORLD_SIZE", "1");
  block.set("ROLE_NAME", "default");
  block.set("ROLE_RANK", rank);
  block.set("ROLE_WORLD_SIZE", world);
  block.set("MASTER_ADDR", values.master_addr);
  block.set("MASTER_PORT", std::to_string(values.master_port));
  block.set("TORCHELASTIC_USE_AGENT_STORE", "True");
  block.set("TORCHELASTIC_RUN_ID", values.run_id);
  block.set("TORCHELASTIC_RESTART_COUNT", std::to_string(values.restart_count));
  block.set("TORCHELASTIC_MAX_RESTARTS", std::to_string(values.max_restarts));
}

std::string make_run_id() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::random_device random;
  return fmt::format("{:x}-{:x}-{:08x}{:08x}",
                     std::chrono::duration_cast<std::chrono::milliseconds>(now).count(), ::getpid(),
                     random(), random());
}

}  // namespace tessera::launch
