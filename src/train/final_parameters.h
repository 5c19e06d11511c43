// Writes whole tensors to one safetensors file, e.g. the parameters at the end of a run.
//
// Threads: any. Cost: one pass; the file is complete or absent (written aside and renamed).
// Errors: IoError naming the path.
#pragma once

#include <torch/types.h>

#include <string>
#include <utility>
#include <vector>

namespace tessera::train {

// float32 or float64 tensors, stored in the order of their names.
void write_parameters(const std::string& path,
                      std::vector<std::pair<std::string, torch::Tensor>> tensors);

}  // namespace tessera::train
