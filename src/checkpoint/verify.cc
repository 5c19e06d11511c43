#include "checkpoint/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "checkpoint/hash_sidecar.h"
#include "checkpoint/manifest.h"
#include "io/checksum.h"
#include "io/safetensors.h"
#include "tessera/error.h"

namespace tessera::checkpoint {

namespace {

constexpr size_t kPieceBytes = 16 * io::kHashBlockBytes;

class Verifier {
 public:
  Verifier(io::FileSystem& files, const std::string& directory)
      : files_(files), directory_(directory) {}

  VerifyReport run() {
    if (!guard([&] { manifest_ = read_manifest(files_, directory_); })) return std::move(report_);
    report_.tensors = manifest_.tensors.size();
    const bool hashes_good = guard([&] { hashes_ = read_hashes(files_, directory_, manifest_); });
    for (size_t i = 0; i < manifest_.files.size(); ++i)
      guard([&] { check_file(static_cast<int>(i), hashes_good); });
    check_stray_files();
    return std::move(report_);
  }

 private:
  template <typename Function>
  bool guard(Function function) {
    try {
      function();
      return true;
    } catch (const Error& error) {
      report_.problems.emplace_back(error.what());
      return false;
    }
  }

  void problem(std::string text) { report_.problems.push_back(std::move(text)); }

  void check_file(int index, bool hashes_good) {
    const StoredFile& stored = manifest_.files[static_cast<size_t>(index)];
    const std::string path = io::join_path(directory_, stored.name);
    if (!files_.exists(path)) throw CorruptionError(stored.name + ": missing");
    auto file = files_.open(path, io::OpenMode::kRead);
    if (file->size() != stored.bytes)
      throw CorruptionError(
          fmt::format("{}: has {} bytes instead of {}", stored.name, file->size(), stored.bytes));
    ++report_.files;
    report_.bytes += stored.bytes;
    guard([&] { check_header(*file, index); });
    for (const StoredTensor& tensor : manifest_.tensors) {
      for (const StoredBox& box : tensor.boxes) {
        if (box.file != index) continue;
        if (hashes_good) check_blocks(*file, stored, tensor, box);
        if (tensor.integer) check_integer(*file, stored, tensor, box);
      }
    }
    file->close();
  }

  void check_header(io::File& file, int index) {
    const StoredFile& stored = manifest_.files[static_cast<size_t>(index)];
    std::string bytes(stored.data_offset, '\0');
    file.read_at(0, bytes.data(), bytes.size());
    if (io::hash_bytes(bytes.data(), bytes.size()) != stored.header_hash)
      problem(fmt::format("{}: bytes 0 to {}, the header, do not match their checksum", stored.name,
                          stored.data_offset));
    const io::SafetensorsHeader header = io::read_safetensors_header(file);
    std::map<std::string, const io::SafetensorsEntry*> entries;
    for (const io::SafetensorsEntry& entry : header.entries) entries[entry.name] = &entry;
    std::set<std::string> listed;
    for (const StoredTensor& tensor : manifest_.tensors) {
      for (const StoredBox& box : tensor.boxes) {
        if (box.file != index) continue;
        listed.insert(tensor.file_name());
        const auto found = entries.find(tensor.file_name());
        if (found == entries.end())
          problem(
              fmt::format("{}: the header lacks the tensor '{}'", stored.name, tensor.file_name()));
        else
          check_entry(stored, tensor, box, *found->second, header.data_offset);
      }
    }
    for (const auto& [name, entry] : entries)
      if (!listed.contains(name))
        problem(fmt::format("{}: holds '{}', which the manifest does not list", stored.name, name));
  }

  // An entry is either this one box, or the whole tensor of which the box is a part.
  void check_entry(const StoredFile& stored, const StoredTensor& tensor, const StoredBox& box,
                   const io::SafetensorsEntry& entry, uint64_t data_offset) {
    std::vector<int64_t> rest = tensor.shape;
    const bool whole = entry.shape == tensor.shape;
    const int64_t first = whole ? 0 : box.row_begin;
    if (!rest.empty()) rest[0] = box.row_end - box.row_begin;
    const uint64_t begin = data_offset + entry.begin +
                           static_cast<uint64_t>(box.row_begin - first) * tensor.row_bytes();
    if (entry.dtype != tensor.dtype || (!whole && entry.shape != rest) || begin != box.offset)
      problem(fmt::format("{}: the header's entry of '{}' contradicts the manifest", stored.name,
                          tensor.file_name()));
  }

  void check_blocks(io::File& file, const StoredFile& stored, const StoredTensor& tensor,
                    const StoredBox& box) {
    std::vector<char> piece(std::min<uint64_t>(kPieceBytes, box.bytes));
    std::vector<uint64_t> actual;
    for (uint64_t done = 0; done < box.bytes; done += piece.size()) {
      piece.resize(std::min<uint64_t>(piece.size(), box.bytes - done));
      file.read_at(box.offset + done, piece.data(), piece.size());
      io::hash_blocks(piece.data(), piece.size(), actual);
    }
    for (size_t block = 0; block < actual.size(); ++block)
      if (actual[block] != hashes_[box.first_block + block])
        problem(describe_damage(stored, tensor, box, block));
    report_.blocks += actual.size();
  }

  void check_integer(io::File& file, const StoredFile& stored, const StoredTensor& tensor,
                     const StoredBox& box) {
    float value = 0;
    file.read_at(box.offset, &value, sizeof(value));
    if (value != static_cast<float>(*tensor.integer))
      problem(fmt::format("{}: '{}' is {} here and {} in the manifest", stored.name, tensor.key,
                          value, *tensor.integer));
  }

  void check_stray_files() {
    std::set<std::string> known = {kManifestName, kHashesName};
    for (const StoredFile& file : manifest_.files) known.insert(file.name);
    for (const io::DirectoryEntry& entry : files_.list(directory_))
      if (!known.contains(entry.name))
        problem(entry.name + ": stray, the manifest does not list it");
  }

  io::FileSystem& files_;
  const std::string& directory_;
  Manifest manifest_;
  std::vector<uint64_t> hashes_;
  VerifyReport report_;
};

}  // namespace

VerifyReport verify_checkpoint(io::FileSystem& files, const std::string& directory) {
  return Verifier(files, directory).run();
}

}  // namespace tessera::checkpoint
