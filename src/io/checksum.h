// XXH3-64 over fixed-size blocks: the checksum of every byte that a checkpoint stores.
// Blocks restart at the beginning of each box, so that a reader of part of a box verifies only the
// blocks that it touches. Measured at 8 to 17 GB/s a core; see src/checkpoint/README.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera::io {

inline constexpr size_t kHashBlockBytes = size_t{64} * 1024;

uint64_t hash_bytes(const void* data, size_t size);

inline size_t hash_block_count(uint64_t bytes) {
  return static_cast<size_t>((bytes + kHashBlockBytes - 1) / kHashBlockBytes);
}

// Appends one hash per block of [data, data + size); the last block may be short.
void hash_blocks(const void* data, size_t size, std::vector<uint64_t>& out);

}  // namespace tessera::io
