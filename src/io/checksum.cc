#include "io/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

namespace tessera::io {

uint64_t hash_bytes(const void* data, size_t size) { return XXH3_64bits(data, size); }

void hash_blocks(const void* data, size_t size, std::vector<uint64_t>& out) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  for (size_t begin = 0; begin < size; begin += kHashBlockBytes) {
    out.push_back(hash_bytes(bytes + begin, std::min(kHashBlockBytes, size - begin)));
  }
}

}  // namespace tessera::io
