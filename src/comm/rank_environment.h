// Finds this process's place among its peers in the environment that its launcher left.
// No torch. Threads: reads the environment, which must not change meanwhile.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace tessera::comm {

struct RankEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string master_addr;
  int master_port = 0;
  // The store lives in the launcher (tessera-run, torchrun); otherwise rank 0 hosts it.
  bool store_is_external = false;
  // Distinguishes runs and restarts that meet in one store.
  std::string store_prefix;
  // Whose variables were used: "none", "torchrun", "Open MPI", "PMI", "Slurm".
  std::string source = "none";
};

using GetEnv = std::function<std::optional<std::string>(const char*)>;

// Throws UsageError naming the variable, its value and what is expected. `get` is the process
// environment by default.
RankEnvironment read_rank_environment(const GetEnv& get = {});

}  // namespace tessera::comm
