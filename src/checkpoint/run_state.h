// What one rank keeps between the saves of a run.
#pragma once

#include <string>

#include "checkpoint/plan_memory.h"
#include "checkpoint/run_lock.h"

namespace tessera::checkpoint {

struct RunState {
  explicit RunState(std::string root) : lock(std::move(root)) {}
  RunLock lock;  // taken by rank 0 before the first save
  PlanMemory plans;
};

}  // namespace tessera::checkpoint
