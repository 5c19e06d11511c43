#include "checkpoint/manifest_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "checkpoint/manifest.h"
#include "io/safetensors.h"
#include "io/safetensors_limits.h"
#include "tessera/error.h"

namespace tessera::checkpoint {

namespace {

class TensorCheck {
 public:
  TensorCheck(const Manifest& manifest, const StoredTensor& tensor, const std::string& where)
      : manifest_(manifest), tensor_(tensor), where_(where) {}

  void run() const {
    check_size();
    for (const StoredBox& box : tensor_.boxes) check_box(box);
    switch (tensor_.placement) {
      case StoredPlacement::kSharded:
        check_rows_covered();
        break;
      case StoredPlacement::kReplicated:
        check_whole(1);
        break;
      case StoredPlacement::kPerRank:
        check_per_rank();
        break;
    }
    if (tensor_.integer && (!tensor_.shape.empty() || tensor_.dtype != "F32"))
      fail("carries an integer but is not a 0-dim F32 tensor");
    if (tensor_.parameter.empty() != tensor_.state_key.empty())
      fail("names only one of parameter and state");
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw CorruptionError(fmt::format("{}: tensor '{}' {}", where_, tensor_.key, what));
  }

  void check_size() const {
    const uint64_t element = io::safetensors_element_size(tensor_.dtype);
    if (element == 0) fail(fmt::format("has the unknown dtype '{}'", tensor_.dtype));
    // Zero sizes are skipped, so that {huge, huge, 0} cannot overflow a product of the other sizes.
    uint64_t bytes = element;
    for (const int64_t size : tensor_.shape) {
      if (size == 0) continue;
      if (bytes > static_cast<uint64_t>(kMaxStoredBytes) / static_cast<uint64_t>(size))
        fail("has a shape too large to be real");
      bytes *= static_cast<uint64_t>(size);
    }
  }

  void check_box(const StoredBox& box) const {
    if (box.row_end > tensor_.rows()) fail("has a box beyond its last row");
    if (static_cast<uint64_t>(box.row_end - box.row_begin) * tensor_.row_bytes() != box.bytes)
      fail("has a box whose length is not that of its rows");
    if (box.file >= static_cast<int>(manifest_.files.size()))
      fail("lies in a file that is not listed");
    const StoredFile& file = manifest_.files[static_cast<size_t>(box.file)];
    if (box.offset < file.data_offset || box.offset + box.bytes > file.bytes)
      fail(fmt::format("lies outside of the file {}", file.name));
    if (box.rank >= manifest_.head.world_size) fail("has a box of a rank beyond the world size");
  }

  void check_rows_covered() const {
    std::vector<std::pair<int64_t, int64_t>> rows;
    for (const StoredBox& box : tensor_.boxes) rows.emplace_back(box.row_begin, box.row_end);
    std::sort(rows.begin(), rows.end());
    int64_t next = 0;
    for (const auto& [begin, end] : rows) {
      if (begin > next) fail(fmt::format("lacks rows {} to {}", next, begin));
      if (begin < next) fail(fmt::format("has rows {} to {} twice", begin, next));
      next = end;
    }
    if (next != tensor_.rows()) fail(fmt::format("lacks rows {} to {}", next, tensor_.rows()));
    if (rows.empty()) fail("is stored nowhere");
  }

  void check_whole(size_t boxes) const {
    if (tensor_.boxes.size() != boxes)
      fail(fmt::format("has {} boxes instead of {}", tensor_.boxes.size(), boxes));
    for (const StoredBox& box : tensor_.boxes)
      if (box.row_begin != 0 || box.row_end != tensor_.rows()) fail("is not stored whole");
  }

  void check_per_rank() const {
    check_whole(static_cast<size_t>(manifest_.head.world_size));
    for (size_t rank = 0; rank < tensor_.boxes.size(); ++rank)
      if (tensor_.boxes[rank].rank != static_cast<int>(rank))
        fail("does not hold one box a rank, in order");
  }

  const Manifest& manifest_;
  const StoredTensor& tensor_;
  const std::string& where_;
};

void check_files(const Manifest& manifest, const std::string& where) {
  std::set<std::string> names = {kManifestName, kHashesName};
  for (const StoredFile& file : manifest.files) {
    if (!names.insert(file.name).second)
      throw CorruptionError(fmt::format("{}: the file {} is listed twice", where, file.name));
    if (file.data_offset > file.bytes)
      throw CorruptionError(
          fmt::format("{}: the file {} is shorter than its header", where, file.name));
    if (file.data_offset > io::kLengthBytes + io::kLongestHeader)
      throw CorruptionError(fmt::format("{}: the header of the file {} is over the format's limit",
                                        where, file.name));
  }
}

// Otherwise a short manifest could have one large file read a million times.
void check_bytes_used_once(const Manifest& manifest, const std::string& where) {
  struct Use {
    int file;
    uint64_t begin;
    uint64_t end;
    const StoredTensor* tensor;
  };
  std::vector<Use> uses;
  for (const StoredTensor& tensor : manifest.tensors)
    for (const StoredBox& box : tensor.boxes)
      if (box.bytes > 0)
        uses.push_back({box.file, box.offset, box.offset + box.bytes, &tensor});
  std::sort(uses.begin(), uses.end(), [](const Use& a, const Use& b) {
    return a.file != b.file ? a.file < b.file : a.begin < b.begin;
  });
  for (size_t i = 1; i < uses.size(); ++i)
    if (uses[i].file == uses[i - 1].file && uses[i].begin < uses[i - 1].end)
      throw CorruptionError(fmt::format(
          "{}: tensors '{}' and '{}' share bytes {} to {} of the file {}", where,
          uses[i - 1].tensor->key, uses[i].tensor->key, uses[i].begin,
          std::min(uses[i].end, uses[i - 1].end),
          manifest.files[static_cast<size_t>(uses[i].file)].name));
}

void check_aliases(const Manifest& manifest, const std::string& where) {
  for (const auto& [alias, stored] : manifest.aliases)
    if (manifest.aliases.contains(stored))
      throw CorruptionError(fmt::format("{}: the alias '{}' leads to another alias", where, alias));
}

}  // namespace

void check_manifest(Manifest& manifest, const std::string& where) {
  check_files(manifest, where);
  check_aliases(manifest, where);
  std::set<std::string> keys;
  for (const StoredTensor& tensor : manifest.tensors) {
    if (tensor.key.empty() || !keys.insert(tensor.key).second)
      throw CorruptionError(
          fmt::format("{}: the key '{}' is empty or occurs twice", where, tensor.key));
    TensorCheck(manifest, tensor, where).run();
  }
  check_bytes_used_once(manifest, where);
  const uint64_t declared = manifest.block_count;
  manifest.number_blocks();
  if (manifest.block_count != declared)
    throw CorruptionError(fmt::format("{}: declares {} block hashes, its boxes have {}", where,
                                      declared, manifest.block_count));
  if (declared > kMaxHashBlocks)
    throw CorruptionError(fmt::format("{}: {} block hashes are too many", where, declared));
}

}  // namespace tessera::checkpoint
