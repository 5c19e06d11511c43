// Memory of a training run: what a rank needs by arithmetic, and what the system says it took.
//
// Threads: pure functions and reads of /proc. No torch here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::train {

struct MemoryModel {
  std::vector<int64_t> unit_numel;  // parameters of each unit
  int64_t element_bytes = 4;
  int64_t state_tensors = 2;  // of a parameter's size, kept by the optimizer
  int world_size = 1;
  bool sharded = true;             // false: the unwrapped module
  bool shared_parameters = false;  // the ranks of a host map the same parameters (shm)
};

// Bytes a rank needs beside activations and temporaries:
// sharded, P parameters of E bytes on W ranks with S state tensors: (2 + S) E P / W, two gathered
// units and one unit of full gradients; with shared parameters E P in place of the parameters'
// share and the gathered units.
int64_t formula_bytes(const MemoryModel& model);

int64_t resident_bytes();       // now; 0 where the system does not tell
int64_t peak_resident_bytes();  // since the start of the process

// The middle of the values; the lower one of two. 0 for none.
double median(std::vector<double> values);

// Steps left out of a benchmark: the first ones run at another speed.
int64_t warm_up_steps(int64_t steps);

}  // namespace tessera::train
