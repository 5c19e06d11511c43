// Counter-based pseudo-random numbers: a value is a pure function of its key and counters, so that
// any rank computes any sample's numbers without having drawn the ones before it.
//
// Threads: pure functions. Cost: a few nanoseconds.
#pragma once

#include <cstdint>

namespace tessera::train {

// A bijection of 64-bit words in which every input bit affects every output bit.
constexpr uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

constexpr uint64_t mix64(uint64_t key, uint64_t a, uint64_t b) {
  return mix64(mix64(mix64(key) ^ a) ^ b);
}

// Uniform in [0, 1), 53 bits.
constexpr double unit_interval(uint64_t bits) {
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

}  // namespace tessera::train
