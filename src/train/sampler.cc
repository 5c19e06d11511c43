#include "sampler.h"

#include <tessera/error.h>

#include <bit>
#include <string>

#include "mix.h"

namespace tessera::train {
namespace {

constexpr int kFeistelRounds = 6;

}  // namespace

BatchPart batch_part(int64_t batch, int rank, int world_size) {
  const int64_t quotient = batch / world_size;
  const int64_t remainder = batch % world_size;
  const auto begin_of = [&](int64_t r) { return r * quotient + r * remainder / world_size; };
  return {begin_of(rank), begin_of(rank + 1)};
}

SampleOrder::SampleOrder(uint64_t seed, int64_t count) : seed_(seed), count_(count) {
  if (count <= 0)
    throw UsageError("the data holds no sample (count " + std::to_string(count) + ")");
  const int bits = std::bit_width(static_cast<uint64_t>(count - 1));
  half_bits_ = bits < 2 ? 1 : (bits + 1) / 2;
}

// A Feistel network: a bijection of 2 * half_bits_ bits whatever the round function.
uint64_t SampleOrder::permute_once(uint64_t value, uint64_t key) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_;
  uint64_t right = value & mask;
  for (int round = 0; round < kFeistelRounds; ++round) {
    const uint64_t next = left ^ (mix64(key, static_cast<uint64_t>(round), right) & mask);
    left = right;
    right = next;
  }
  return (left << half_bits_) | right;
}

SampleRef SampleOrder::at(int64_t position) const {
  const uint64_t key = mix64(seed_, static_cast<uint64_t>(epoch(position)), 0x5a4d);
  uint64_t index = static_cast<uint64_t>(position % count_);
  // Walking the cycle until it is back in range keeps the bijection on [0, count).
  do {
    index = permute_once(index, key);
  } while (index >= static_cast<uint64_t>(count_));
  return {position, static_cast<int64_t>(index)};
}

std::vector<SampleRef> SampleOrder::slice(int64_t begin, int64_t end) const {
  std::vector<SampleRef> samples;
  samples.reserve(static_cast<size_t>(end - begin));
  for (int64_t position = begin; position < end; ++position) samples.push_back(at(position));
  return samples;
}

}  // namespace tessera::train
