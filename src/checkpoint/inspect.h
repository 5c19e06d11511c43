// Describes a checkpoint from its manifest alone: no data is read.
//
// Threads: reentrant. Cost: the manifest.
#pragma once

#include <string>

#include "checkpoint/manifest.h"

namespace tessera::checkpoint {

// For people: one line a tensor, where tensors that differ only in layer numbers share a line.
std::string inspect_text(const Manifest& manifest, const std::string& directory);

// For programs: everything that the manifest holds, and bytes per tensor.
std::string inspect_json(const Manifest& manifest, const std::string& directory);

}  // namespace tessera::checkpoint
