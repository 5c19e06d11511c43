// The metrics file of a run: one JSON object a line and step.
//
// A run that resumes at step s continues the file: lines of later steps, written by the run that
// was interrupted, and a line that was torn by its end are dropped first, so that every step is in
// the file once.
//
// Threads: one. Cost: one write call a step; opening reads the file once. Only rank 0 has one.
// Errors: IoError naming the path; UsageError where the path is a directory, a named pipe
// or a file of something else than metrics.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tessera::train {

struct StepMetrics {
  int64_t step = 0;  // steps completed, this one included
  double loss = 0;   // mean over the global batch, before the step
  double tokens_per_second = 0;
  double seconds = 0;               // of this step, without saving
  std::optional<double> grad_norm;  // before clipping; only where gradients are clipped
  int64_t epoch = 0;                // of the next sample
  int64_t position = 0;             // samples consumed
};

std::string to_json_line(const StepMetrics& metrics);

class MetricsFile {
 public:
  MetricsFile(std::string path, int64_t resumed_step);
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;
  ~MetricsFile();

  void append(const StepMetrics& metrics);

 private:
  std::string path_;
  int fd_ = -1;
};

}  // namespace tessera::train
