// `hashes.bin`: the XXH3-64 of every 64 KiB block of every box, in the manifest's order.
//   bytes 0..7   "TSRHASH1"
//   bytes 8..15  number of hashes, little-endian
//   then         the hashes, 8 bytes each, little-endian
// The manifest seals the whole file.
// Threads: reentrant. Cost: 0.012 % of the data.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "io/file_system.h"

namespace tessera::checkpoint {

std::string encode_hashes(const std::vector<uint64_t>& hashes);

// Throws CorruptionError where the file is missing, damaged or not the manifest's.
std::vector<uint64_t> read_hashes(io::FileSystem& files, const std::string& directory,
                                  const Manifest& manifest);

// Opens a file that belongs to the checkpoint. Throws CorruptionError where it is missing or a
// symbolic link: what the manifest lists lies in the directory and nowhere else.
std::unique_ptr<io::File> open_listed(io::FileSystem& files, const std::string& directory,
                                      const std::string& name);

// What is wrong with the size of an open data file, and with its header; empty where nothing is.
// Cost: the header is read.
std::string check_size(io::File& file, const StoredFile& stored);
std::string check_header(io::File& file, const StoredFile& stored);

// Text for a block that does not have its hash: file, tensor and byte range.
std::string describe_damage(const StoredFile& file, const StoredTensor& tensor,
                            const StoredBox& box, size_t block);

}  // namespace tessera::checkpoint
