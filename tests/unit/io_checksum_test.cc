#include "io/checksum.h"

#include <gtest/gtest.h>

#include <string>

namespace tessera::io {
namespace {

// The buffer over which the xxHash project publishes its test vectors.
std::vector<unsigned char> published_buffer(size_t size) {
  std::vector<unsigned char> buffer(size);
  uint64_t generator = 2654435761U;
  for (unsigned char& byte : buffer) {
    byte = static_cast<unsigned char>(generator >> 56);
    generator *= 11400714785074694797ULL;
  }
  return buffer;
}

TEST(HashBytes, MatchesThePublishedVectors) {
  struct Vector {
    size_t size;
    uint64_t hash;
  };
  static constexpr Vector kVectors[] = {
      {0, 0x2d06800538d394c2},    {1, 0xc44bdff4074eecdb},    {6, 0x27b56a84cd2d7325},
      {12, 0xa713daf0dfbb77e7},   {24, 0xa3fe70bf9d3510eb},   {48, 0x397da259ecba1f11},
      {80, 0xbcdefbbb2c47c90a},   {195, 0xcd94217ee362ec3a},  {403, 0xcdeb804d65c6dea4},
      {512, 0x617e49599013cb6b},  {2048, 0xdd59e2c3a5f038e0}, {2240, 0x6e73a90539cf2948},
      {2367, 0xcb37aeb9e5d361ed},
  };
  const std::vector<unsigned char> buffer = published_buffer(4096);
  for (const Vector& vector : kVectors) {
    EXPECT_EQ(hash_bytes(buffer.data(), vector.size), vector.hash) << vector.size << " bytes";
  }
}

TEST(HashBytes, MatchesKnownTexts) {
  EXPECT_EQ(hash_bytes("a", 1), 0xe6c632b61e964e1fU);
  EXPECT_EQ(hash_bytes("abc", 3), 0x78af5f94892f3950U);
  EXPECT_EQ(hash_bytes("hello", 5), 10760762337991515389U);
  EXPECT_EQ(hash_bytes(std::string(1024, 'a').data(), 1024), 5358556820880783900U);
}

TEST(HashBlocks, HashesEachBlockByItself) {
  const std::vector<unsigned char> buffer = published_buffer(2 * kHashBlockBytes + 5);
  std::vector<uint64_t> hashes = {42};
  hash_blocks(buffer.data(), buffer.size(), hashes);
  ASSERT_EQ(hashes.size(), 4U);
  EXPECT_EQ(hashes[0], 42U) << "earlier hashes stay";
  EXPECT_EQ(hashes[1], hash_bytes(buffer.data(), kHashBlockBytes));
  EXPECT_EQ(hashes[1], 0x918f7f0f912ca480U);
  EXPECT_EQ(hashes[2], hash_bytes(buffer.data() + kHashBlockBytes, kHashBlockBytes));
  EXPECT_EQ(hashes[3], hash_bytes(buffer.data() + 2 * kHashBlockBytes, 5));
}

TEST(HashBlocks, CountsBlocks) {
  EXPECT_EQ(hash_block_count(0), 0U);
  EXPECT_EQ(hash_block_count(1), 1U);
  EXPECT_EQ(hash_block_count(kHashBlockBytes), 1U);
  EXPECT_EQ(hash_block_count(kHashBlockBytes + 1), 2U);
  std::vector<uint64_t> none;
  hash_blocks(nullptr, 0, none);
  EXPECT_TRUE(none.empty());
}

TEST(HashBlocks, EveryFlippedBitShows) {
  std::vector<unsigned char> buffer = published_buffer(300);
  const uint64_t original = hash_bytes(buffer.data(), buffer.size());
  for (size_t bit = 0; bit < buffer.size() * 8; ++bit) {
    buffer[bit / 8] ^= static_cast<unsigned char>(1U << (bit % 8));
    EXPECT_NE(hash_bytes(buffer.data(), buffer.size()), original) << "bit " << bit;
    buffer[bit / 8] ^= static_cast<unsigned char>(1U << (bit % 8));
  }
}

}  // namespace
}  // namespace tessera::io
