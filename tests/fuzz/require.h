// What every fuzz target checks with: a broken promise ends the program, which is what a fuzzer
// looks for.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace tessera::fuzz {

inline void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

}  // namespace tessera::fuzz
