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
// A lost disk of a terabyte would be 16 million lines.
constexpr size_t kMostProblems = 1000;

class Verifier {
 public:
  Verifier(io::FileSystem& files, const std::string& directory)
      : files_(files), directory_(directory) {}

  VerifyReport run() {
    if (!guard([&] { manifest_ = read_manifest(files_, directory_); })) return std::move(report_);
    report_.tensors = manifest_.tensors.size();
    const bool hashes_good = guard([&] { hashes_ = read_hashes(files_, directory_, manifest_); });
    uses_.resize(manifest_.files.size());
    for (const StoredTensor& tensor : manifest_.tensors)
      for (const StoredBox& box : tensor.boxes)
        uses_[static_cast<size_t>(box.file)].push_back({&tensor, &box});
    for (size_t i = 0; i < manifest_.files.size(); ++i) guard([&] { check_file(i, hashes_good); });
    check_stray_files();
    if (unlisted_ > 0) report_.problems.push_back(fmt::format("... and {} more", unlisted_));
    return std::move(report_);
  }

 private:
  struct Use {
    const StoredTensor* tensor;
    const StoredBox* box;
  };

  template <typename Function>
  bool guard(Function function) {
    try {
      function();
      return true;
    } catch (const Error& error) {
      problem(error.what());
      return false;
    }
  }

  void problem(std::string text) {
    if (report_.problems.size() < kMostProblems)
      report_.problems.push_back(std::move(text));
    else
      ++unlisted_;
  }

  void check_file(size_t index, bool hashes_good) {
    const StoredFile& stored = manifest_.files[index];
    auto file = open_listed(files_, directory_, stored.name);
    const std::string wrong_size = check_size(*file, stored);
    if (!wrong_size.empty()) throw CorruptionError(wrong_size);
    ++report_.files;
    report_.bytes += stored.bytes;
    const std::string damage = check_header(*file, stored);
    if (!damage.empty()) problem(damage);
    guard([&] { check_entries(*file, index); });
    for (const Use& use : uses_[index]) {
      if (hashes_good) check_blocks(*file, stored, *use.tensor, *use.box);
      if (use.tensor->integer && use.box->bytes > 0)
        check_integer(*file, stored, *use.tensor, *use.box);
    }
    file->close();
  }

  void check_entries(io::File& file, size_t index) {
    const StoredFile& stored = manifest_.files[index];
    const io::SafetensorsHeader header = io::read_safetensors_header(file);
    std::map<std::string, const io::SafetensorsEntry*> entries;
    for (const io::SafetensorsEntry& entry : header.entries) entries[entry.name] = &entry;
    std::set<std::string> listed;
    for (const auto& [tensor, box] : uses_[index]) {
      listed.insert(tensor->file_name());
      const auto found = entries.find(tensor->file_name());
      if (found == entries.end())
        problem(
            fmt::format("{}: the header lacks the tensor '{}'", stored.name, tensor->file_name()));
      else
        check_entry(stored, *tensor, *box, *found->second, header.data_offset);
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
  std::vector<std::vector<Use>> uses_;  // by file
  std::vector<uint64_t> hashes_;
  VerifyReport report_;
  size_t unlisted_ = 0;
};

}  // namespace

VerifyReport verify_checkpoint(io::FileSystem& files, const std::string& directory) {
  return Verifier(files, directory).run();
}

}  // namespace tessera::checkpoint
