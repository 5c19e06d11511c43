// Consistency of a parsed manifest, so that everything behind it may trust its numbers.
//
// Threads: reentrant. Cost: O(boxes log boxes).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tessera::checkpoint {

struct Manifest;

inline constexpr int64_t kMaxStoredBytes = int64_t{1} << 56;
inline constexpr int64_t kMaxWorldSize = 1 << 20;
inline constexpr size_t kMaxDims = 64;

// Throws CorruptionError for duplicate keys, unknown dtypes, shapes that overflow, boxes out of
// bounds, gaps or overlaps in rows, wrong counts; numbers the blocks.
void check_manifest(Manifest& manifest, const std::string& where);

}  // namespace tessera::checkpoint
