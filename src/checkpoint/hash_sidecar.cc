#include "checkpoint/hash_sidecar.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "io/checksum.h"
#include "tessera/error.h"

namespace tessera::checkpoint {

namespace {

static_assert(std::endian::native == std::endian::little,
              "files are little-endian and read in place");

constexpr std::string_view kMagic = "TSRHASH1";
constexpr size_t kHeaderBytes = 16;

}  // namespace

std::string encode_hashes(const std::vector<uint64_t>& hashes) {
  std::string out(kHeaderBytes + hashes.size() * sizeof(uint64_t), '\0');
  const uint64_t count = hashes.size();
  std::memcpy(out.data(), kMagic.data(), kMagic.size());
  std::memcpy(out.data() + kMagic.size(), &count, sizeof(count));
  if (count > 0)
    std::memcpy(out.data() + kHeaderBytes, hashes.data(), hashes.size() * sizeof(uint64_t));
  return out;
}

std::vector<uint64_t> read_hashes(io::FileSystem& files, const std::string& directory,
                                  const Manifest& manifest) {
  const std::string path = io::join_path(directory, kHashesName);
  const uint64_t expected = kHeaderBytes + manifest.block_count * sizeof(uint64_t);
  auto file = open_listed(files, directory, kHashesName);
  const uint64_t actual = file->size();
  if (actual != expected)
    throw CorruptionError(fmt::format("{}: has {} bytes instead of {}", path, actual, expected));
  std::string bytes(expected, '\0');
  file->read_at(0, bytes.data(), bytes.size());
  file->close();
  if (io::hash_bytes(bytes.data(), bytes.size()) != manifest.hashes_hash)
    throw CorruptionError(path +
                          ": does not match the hash in the manifest: damaged, or of another save");
  std::vector<uint64_t> hashes(manifest.block_count);
  if (bytes.compare(0, kMagic.size(), kMagic) != 0)
    throw CorruptionError(path + ": not a hash file");
  if (!hashes.empty())
    std::memcpy(hashes.data(), bytes.data() + kHeaderBytes, hashes.size() * sizeof(uint64_t));
  return hashes;
}

std::unique_ptr<io::File> open_listed(io::FileSystem& files, const std::string& directory,
                                      const std::string& name) {
  const std::string path = io::join_path(directory, name);
  try {
    return files.open(path, io::OpenMode::kRead);
  } catch (const IoError& error) {
    switch (error.error_number()) {
      case ENOENT:
        throw CorruptionError(path + ": missing");
      case ELOOP:
        throw CorruptionError(path + ": a symbolic link, not a file of this checkpoint");
      case EISDIR:
      case EINVAL:
        throw CorruptionError(path + ": not a regular file");
      default:
        throw;
    }
  }
}

std::string check_size(io::File& file, const StoredFile& stored) {
  const uint64_t size = file.size();
  if (size == stored.bytes) return "";
  return fmt::format("{}: has {} bytes instead of {}", stored.name, size, stored.bytes);
}

std::string check_header(io::File& file, const StoredFile& stored) {
  if (std::string problem = check_size(file, stored); !problem.empty()) return problem;
  std::string bytes(stored.data_offset, '\0');
  file.read_at(0, bytes.data(), bytes.size());
  if (io::hash_bytes(bytes.data(), bytes.size()) == stored.header_hash) return "";
  return fmt::format("{}: bytes 0 to {}, the header, do not match their checksum", stored.name,
                     stored.data_offset);
}

std::string describe_damage(const StoredFile& file, const StoredTensor& tensor,
                            const StoredBox& box, size_t block) {
  const uint64_t begin = box.offset + block * io::kHashBlockBytes;
  const uint64_t end = std::min(begin + io::kHashBlockBytes, box.offset + box.bytes);
  return fmt::format(
      "{}: bytes {} to {}, in tensor '{}' (rows {} to {}), do not match their checksum", file.name,
      begin, end, tensor.key, box.row_begin, box.row_end);
}

}  // namespace tessera::checkpoint
