// What the reader and the writer of safetensors files have to agree on.
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "io/safetensors.h"

namespace tessera::io {

inline constexpr uint64_t kLengthBytes = 8;
inline constexpr uint64_t kLongestHeader = 100'000'000;
inline constexpr std::string_view kMetadataKey = "__metadata__";

// Bytes that dtype and shape ask for; nothing where a size is negative or the product overflows.
std::optional<uint64_t> safetensors_bytes(const SafetensorsEntry& entry);

// The name in quotes for a message: control characters escaped, long names cut.
std::string printable_name(const std::string& name);

}  // namespace tessera::io
