// The step count of a learning-rate scheduler: all the state that LibTorch's schedulers have, but
// protected. A derived class may form a pointer to the member.
#pragma once

#include <torch/optim/schedulers/lr_scheduler.h>

#include <cstdint>

namespace tessera::checkpoint {

class SchedulerAccess : public torch::optim::LRScheduler {
 public:
  static unsigned& step_count(torch::optim::LRScheduler& scheduler) {
    return scheduler.*(&SchedulerAccess::step_count_);
  }
};

inline int64_t scheduler_step(torch::optim::LRScheduler& scheduler) {
  return SchedulerAccess::step_count(scheduler);
}
inline void set_scheduler_step(torch::optim::LRScheduler& scheduler, int64_t step) {
  SchedulerAccess::step_count(scheduler) = static_cast<unsigned>(step);
}

}  // namespace tessera::checkpoint
