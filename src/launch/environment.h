// The environment of a rank: the launcher's own, with the variables of torchrun's contract put in.
//
// Values are kept byte for byte; no shell ever sees them.
// Cost: one copy of the environment for each rank.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::launch {

class EnvironmentBlock {
 public:
  explicit EnvironmentBlock(const char* const* base);
  // Replaces every entry of that name.
  void set(std::string_view name, std::string_view value);
  std::optional<std::string> get(std::string_view name) const;
  const std::vector<std::string>& entries() const { return entries_; }
  // For execve; valid until the block changes.
  std::vector<char*> pointers();

 private:
  std::vector<std::string> entries_;
};

struct RankEnvironment {
  int rank = 0;
  int world_size = 1;
  std::string master_addr;
  int master_port = 0;
  std::string run_id;
  int restart_count = 0;
  int max_restarts = 0;
};

void set_rank_variables(EnvironmentBlock& block, const RankEnvironment& values);

// Unique over runs on all machines: time, process and random bits.
std::string make_run_id();

}  // namespace tessera::launch
