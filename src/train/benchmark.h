// What --bench prints: median speed after warm-up, and peak memory beside the formula.
#pragma once

#include <tessera/fsdp.h>
#include <tessera/runtime.h>

#include <cstdint>
#include <string>
#include <vector>

#include "memory_report.h"

namespace tessera::train {

struct BenchmarkInput {
  std::vector<double> step_seconds;
  int64_t tokens_per_step = 0;
  MemoryModel memory;
  int64_t resident_at_start = 0;  // before model and data
};

// Elements of each unit's parameters, tied ones once.
std::vector<int64_t> unit_sizes(const Sharded& sharded);

// "bench: key=value ..." lines, the same on every rank. [collective]
std::vector<std::string> benchmark_lines(const BenchmarkInput& input, const Runtime& runtime);

}  // namespace tessera::train
