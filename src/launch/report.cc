#include "launch/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <utility>

namespace tessera::launch {
namespace {

std::string describe_other(const Worker& worker) {
  if (!worker.status) return "could not be ended";
  const ExitStatus& status = *worker.status;
  if (worker.stop_signal == 0) return status.describe();
  if (status.signaled && status.value == worker.stop_signal) {
    return fmt::format("stopped by tessera-run ({})", signal_name(status.value));
  }
  if (status.signaled) return status.describe() + " after tessera-run asked it to stop";
  return fmt::format("stopped by tessera-run ({}), exited with code {}",
                     signal_name(worker.stop_signal), status.value);
}

std::string describe_first(const Worker& worker, const std::string& program) {
  if (worker.exec_error != 0) {
    return fmt::format("cannot execute '{}': {}", program, std::strerror(worker.exec_error));
  }
  return fmt::format("rank {} (pid {}) {}", worker.rank, worker.pid, worker.status->describe());
}

}  // namespace

std::string rank_list(const std::vector<int>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", ranks[i]);
    if (last > i) text += fmt::format("-{}", ranks[last]);
    i = last + 1;
  }
  return text;
}

std::vector<std::string> failure_report(const AttemptResult& result,
                                        const std::vector<Worker>& workers,
                                        const std::vector<std::string>& stderr_tail,
                                        const std::string& program) {
  std::vector<std::string> lines;
  const int first = result.first_failed.value_or(-1);
  if (first >= 0) {
    const Worker& worker = workers[static_cast<size_t>(first)];
    const bool alone = worker.exec_error != 0;
    lines.push_back(fmt::format("tessera-run: {}{}",
                                alone ? "" : "first failure: ", describe_first(worker, program)));
    if (alone) return lines;
    if (!stderr_tail.empty()) {
      lines.push_back(fmt::format("tessera-run: last lines of its standard error:"));
      for (const std::string& line : stderr_tail) lines.push_back("    | " + line);
    }
  }
  std::vector<std::pair<std::string, std::vector<int>>> endings;
  for (const Worker& worker : workers) {
    if (worker.rank == first) continue;
    const std::string text = describe_other(worker);
    const auto found = std::find_if(endings.begin(), endings.end(),
                                    [&](const auto& ending) { return ending.first == text; });
    if (found == endings.end()) {
      endings.push_back({text, {worker.rank}});
    } else {
      found->second.push_back(worker.rank);
    }
  }
  for (const auto& [text, ranks] : endings) {
    lines.push_back(fmt::format("tessera-run: rank{} {}: {}", ranks.size() == 1 ? "" : "s",
                                rank_list(ranks), text));
  }
  return lines;
}

}  // namespace tessera::launch
