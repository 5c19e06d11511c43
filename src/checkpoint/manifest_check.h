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
// Arrays and objects inside of each other. What a save writes has less than 20; readers recurse.
inline constexpr size_t kMaxManifestDepth = 100;
// A sidecar of 8 GiB, for 64 TiB of data.
inline constexpr uint64_t kMaxHashBlocks = uint64_t{1} << 30;

// Throws CorruptionError for duplicate keys, unknown dtypes, shapes that overflow, boxes out of
// bounds, gaps or overlaps in rows, bytes that belong to two boxes, wrong counts; numbers the
// blocks. So the work of reading everything is bounded by the sizes of the files.
void check_manifest(Manifest& manifest, const std::string& where);

}  // namespace tessera::checkpoint
