// A checkpoint directory from an enemy, with a right seal and right hashes of the sidecar and of
// the headers: whatever it says, readers refuse it or read what it holds. They never read or write
// out of bounds, never allocate more than the input can justify, never leave the directory, always
// end.
//
// Input: the manifest; then, each behind a line "%%<name> <size>\n", the first bytes of files;
// `size` is what the file claims to have.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "checkpoint/box_reader.h"
#include "checkpoint/directory.h"
#include "checkpoint/hash_sidecar.h"
#include "checkpoint/inspect.h"
#include "checkpoint/manifest.h"
#include "checkpoint/verify.h"
#include "fuzz/allocation_limit.h"
#include "fuzz/hostile_directory.h"
#include "fuzz/require.h"
#include "io/checksum.h"
#include "io/safetensors_limits.h"
#include "tessera/error.h"

namespace tessera::fuzz {
namespace {

using namespace tessera::checkpoint;

constexpr uint64_t kLargestTensor = uint64_t{1} << 20;

// Replaces what follows `label` from `from` on by 16 hex digits.
void patch_hash(std::string& text, std::string_view label, size_t from, uint64_t hash) {
  const size_t at = text.find(label, from);
  if (at == std::string::npos || text.size() - at < label.size() + 16) return;
  text.replace(at + label.size(), 16, hex64(hash));
}

std::string sealed(const std::string& body) {
  return "{\"seal\":\"" + hex64(io::hash_bytes(body.data(), body.size())) + "\",\n" + body;
}

void patch_header_hashes(std::string& body, const HostileDirectory& directory) {
  for (const auto& [name, content] : directory.content) {
    const size_t entry = body.find("\"name\":\"" + name + "\"");
    const size_t offset = entry == std::string::npos ? entry : body.find("\"data_offset\":", entry);
    if (offset == std::string::npos) continue;
    const uint64_t header = std::strtoull(body.c_str() + offset + 14, nullptr, 10);
    if (header <= content.bytes.size())
      patch_hash(body, "\"header_xxh3\":\"", offset, io::hash_bytes(content.bytes.data(), header));
  }
}

HostileDirectory unpack(const std::string& input) {
  HostileDirectory directory;
  size_t begin = input.find("\n%%");
  std::string body = input.substr(0, begin == std::string::npos ? begin : begin + 1);
  uint64_t sidecar_hash = 0;
  while (begin != std::string::npos) {
    const size_t line = begin + 3;
    const size_t line_end = std::min(input.find('\n', line), input.size());
    begin = input.find("\n%%", line_end);
    const std::string head = input.substr(line, line_end - line);
    const size_t space = std::min(head.find(' '), head.size());
    HostileDirectory::Content content;
    if (line_end < input.size()) content.bytes = input.substr(line_end + 1, begin - line_end - 1);
    content.size = std::strtoull(head.c_str() + space, nullptr, 10);
    content.bytes.resize(std::min<uint64_t>(content.bytes.size(), content.size));
    const std::string name = head.substr(0, space);
    if (name == kHashesName)
      sidecar_hash = io::hash_bytes(content.bytes.data(), content.bytes.size());
    if (is_plain_file_name(name)) directory.content[name] = std::move(content);
  }
  patch_hash(body, "\"xxh3\":\"", 0, sidecar_hash);
  patch_header_hashes(body, directory);
  const std::string text = sealed(body);
  directory.content[kManifestName] = {text, text.size()};
  return directory;
}

void require_consistent(const Manifest& manifest) {
  uint64_t blocks = 0;
  for (const StoredFile& file : manifest.files) {
    require(is_plain_file_name(file.name), "file names are plain");
    require(file.data_offset <= file.bytes, "files hold their headers");
    require(file.data_offset <= io::kLongestHeader + io::kLengthBytes, "headers are bounded");
  }
  for (const StoredTensor& tensor : manifest.tensors) {
    require(!tensor.boxes.empty() && manifest.find(tensor.key) == &tensor, "tensors are found");
    for (const StoredBox& box : tensor.boxes) {
      require(box.file >= 0 && static_cast<size_t>(box.file) < manifest.files.size(),
              "files exist");
      const StoredFile& file = manifest.files[static_cast<size_t>(box.file)];
      require(box.offset >= file.data_offset && box.bytes <= file.bytes &&
                  box.offset <= file.bytes - box.bytes,
              "boxes are in their files");
      require(box.row_begin >= 0 && box.row_begin <= box.row_end && box.row_end <= tensor.rows(),
              "boxes are in their tensors");
      require(box.first_block == blocks, "blocks are numbered in order");
      blocks += io::hash_block_count(box.bytes);
    }
  }
  require(blocks == manifest.block_count, "blocks are counted");
}

// All rows of every tensor into an allocation of exactly their size.
void read_all(HostileDirectory& directory, const Manifest& manifest,
              const std::vector<uint64_t>& hashes) {
  BoxReader reader(directory, HostileDirectory::kPath, manifest, hashes);
  for (const StoredTensor& tensor : manifest.tensors) {
    const uint64_t rows = static_cast<uint64_t>(tensor.rows());
    const uint64_t row_bytes = tensor.row_bytes();
    if (row_bytes > 0 && rows > kLargestTensor / row_bytes) continue;
    for (const int64_t first : {int64_t{0}, tensor.rows() / 2}) {
      std::vector<char> out((rows - static_cast<uint64_t>(first)) * row_bytes);
      try {
        reader.read({{&tensor, {first, tensor.rows()}, 0, out.data()}});
      } catch (const Error&) {
      }
    }
  }
}

void read_directory(HostileDirectory& directory) {
  verify_checkpoint(directory, HostileDirectory::kPath);
  list_run(directory, "run");
  try {
    const Manifest manifest = read_manifest(directory, HostileDirectory::kPath);
    require_consistent(manifest);
    require(!inspect_text(manifest, "d").empty() && !inspect_json(manifest, "d").empty(),
            "what is accepted can be shown");
    const Manifest again = parse_manifest(encode_manifest(manifest), "again");
    require(encode_manifest(again) == encode_manifest(manifest), "writing and reading agree");
    read_all(directory, manifest, {});
    read_all(directory, manifest, read_hashes(directory, HostileDirectory::kPath, manifest));
  } catch (const CorruptionError&) {
  } catch (const LayoutError&) {
  } catch (const IoError&) {
  }
}

}  // namespace
}  // namespace tessera::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera::fuzz;
  const std::string input(reinterpret_cast<const char*>(data), size);
  HostileDirectory directory = unpack(input);
  // Pieces of a megabyte, headers that the reader reads before it believes them, and the tree that
  // a manifest becomes.
  allocation_limit = (size_t{4} << 20) + tessera::io::kLongestHeader + 64 * size;
  read_directory(directory);
  allocation_limit = SIZE_MAX;
  return 0;
}
