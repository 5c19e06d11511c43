#include "fuzz/allocation_limit.h"

#include <cstdlib>
#include <new>

#include "fuzz/require.h"

namespace tessera::fuzz {

size_t allocation_limit = SIZE_MAX;

}  // namespace tessera::fuzz

void* operator new(size_t size) {
  tessera::fuzz::require(size <= tessera::fuzz::allocation_limit, "allocations are bounded");
  void* memory = std::malloc(size > 0 ? size : 1);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return size <= tessera::fuzz::allocation_limit ? std::malloc(size > 0 ? size : 1) : nullptr;
}
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
