#include "benchmark.h"

#include <c10/util/StringUtil.h>

#include <algorithm>

namespace tessera::train {
namespace {

std::string speed_line(const BenchmarkInput& input) {
  const auto steps = static_cast<int64_t>(input.step_seconds.size());
  const int64_t warm_up = warm_up_steps(steps);
  const double seconds = median({input.step_seconds.begin() + warm_up, input.step_seconds.end()});
  const double rate = seconds > 0 ? static_cast<double>(input.tokens_per_step) / seconds : 0;
  return c10::str("bench: median_tokens_per_second=", rate, " median_step_seconds=", seconds,
                  " steps_measured=", steps - warm_up, " tokens_per_step=", input.tokens_per_step);
}

std::string memory_line(const BenchmarkInput& input, const Runtime& runtime) {
  int64_t peak = 0;
  for (const std::string& bytes : runtime.all_gather_bytes(std::to_string(peak_resident_bytes()))) {
    peak = std::max<int64_t>(peak, std::stoll(bytes));
  }
  return c10::str("bench: peak_resident_bytes=", peak,
                  " resident_at_start_bytes=", input.resident_at_start,
                  " formula_bytes=", formula_bytes(input.memory),
                  " ranks=", input.memory.world_size, " backend=", runtime.backend_name());
}

}  // namespace

std::vector<int64_t> unit_sizes(const Sharded& sharded) {
  std::vector<int64_t> sizes;
  for (const ShardedParameter& parameter : sharded.parameters()) {
    const auto unit = static_cast<size_t>(parameter.unit);
    if (unit >= sizes.size()) sizes.resize(unit + 1, 0);
    int64_t numel = 1;
    for (const int64_t size : parameter.shape) numel *= size;
    sizes[unit] += numel;
  }
  return sizes;
}

std::vector<std::string> benchmark_lines(const BenchmarkInput& input, const Runtime& runtime) {
  return {speed_line(input), memory_line(input, runtime)};
}

}  // namespace tessera::train
