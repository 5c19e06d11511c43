// Ends the program where one allocation is larger than the limit: a size that an enemy claims must
// not become memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::fuzz {

extern size_t allocation_limit;  // no limit at first

}  // namespace tessera::fuzz
