#include "memory_report.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <numeric>

namespace tessera::train {

int64_t formula_bytes(const MemoryModel& model) {
  std::vector<int64_t> units = model.unit_numel;
  std::sort(units.begin(), units.end(), std::greater<>());
  const int64_t parameters = std::accumulate(units.begin(), units.end(), int64_t{0});
  const int64_t gradients_and_states = (1 + model.state_tensors) * parameters / model.world_size;
  if (!model.sharded) return (parameters + gradients_and_states) * model.element_bytes;
  const int64_t largest = units.empty() ? 0 : units[0];
  const int64_t second = units.size() < 2 ? 0 : units[1];
  const int64_t held =
      model.shared_parameters ? parameters : parameters / model.world_size + largest + second;
  return (held + gradients_and_states + largest) * model.element_bytes;
}

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0;
  int64_t resident = 0;
  if (!(file >> total >> resident)) return 0;
  return resident * ::sysconf(_SC_PAGESIZE);
}

int64_t peak_resident_bytes() {
  struct rusage usage {};
  if (::getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  return int64_t{usage.ru_maxrss} * 1024;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

int64_t warm_up_steps(int64_t steps) {
  if (steps <= 1) return 0;
  return std::min(steps - 1, std::max<int64_t>(2, steps / 10));
}

}  // namespace tessera::train
