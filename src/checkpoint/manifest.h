// What a checkpoint directory says about itself: `manifest.json`. Format: FORMAT.md.
//
// The manifest alone decides which files and bytes belong to a checkpoint. Its text is sealed by a
// hash, so an edit is found; parsing treats the text as hostile all the same: names are plain file
// names, every size is bounded and every sum is checked for overflow.
// Threads: values; free functions are reentrant.
// Cost: one pass over the text; about 150 bytes a tensor and 40 bytes a box.
// Errors: CorruptionError for a damaged or contradictory manifest, LayoutError for a format version
// that this library does not know.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/file_system.h"

namespace tessera::checkpoint {

inline constexpr int kFormatVersion = 1;
inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kHashesName = "hashes.bin";
inline constexpr uint64_t kMaxManifestBytes = uint64_t{512} << 20;

enum class StoredKind { kSharded, kFull, kLocal };
enum class StoredPlacement { kSharded, kReplicated, kPerRank };

std::string to_string(StoredKind kind);
std::string to_string(StoredPlacement placement);

// Rows [row_begin, row_end) of dim 0 of a tensor, back to back in one file. A 0-dim tensor is one
// row.
struct StoredBox {
  int64_t row_begin = 0;
  int64_t row_end = 0;
  int file = 0;         // index into Manifest::files
  uint64_t offset = 0;  // absolute
  uint64_t bytes = 0;
  int rank = 0;              // who wrote it; for kPerRank: whose value it is
  uint64_t first_block = 0;  // index of its first hash in the sidecar; derived, not stored
};

struct StoredTensor {
  std::string key;
  std::string dtype;  // as in safetensors
  std::vector<int64_t> shape;
  StoredPlacement placement = StoredPlacement::kReplicated;
  std::string name;                // in the safetensors file, where it is not `key`; else empty
  std::string parameter;           // for optimizer state: the parameter's name, else empty
  std::string state_key;           // for optimizer state: the state's own key
  std::optional<int64_t> integer;  // exact value of an integer stored as 0-dim F32
  std::vector<StoredBox> boxes;

  const std::string& file_name() const { return name.empty() ? key : name; }
  int64_t rows() const { return shape.empty() ? 1 : shape[0]; }
  uint64_t row_bytes() const;  // 0 where a later dim is 0
};

struct StoredFile {
  std::string name;
  uint64_t bytes = 0;
  uint64_t data_offset = 0;  // length of what precedes the data
  uint64_t header_hash = 0;  // XXH3-64 of [0, data_offset)
};

struct ManifestHead {
  int version = kFormatVersion;
  uint64_t save_sequence = 0;
  int64_t step = 0;
  StoredKind kind = StoredKind::kSharded;
  int world_size = 1;
  std::string writer;
};

struct Manifest {
  ManifestHead head;
  std::vector<std::pair<std::string, std::string>> spec;  // CkptSpec::fields()
  std::string layout;                                     // fingerprint of the rows of every rank
  std::vector<StoredFile> files;
  uint64_t block_count = 0;
  uint64_t hashes_hash = 0;                    // XXH3-64 of the whole sidecar
  std::map<std::string, std::string> aliases;  // further name -> name under which it is stored
  std::string scalars_json = "{}";
  std::vector<StoredTensor> tensors;

  const StoredTensor* find(const std::string& key) const;
  // Assigns StoredBox::first_block in order and sets block_count.
  void number_blocks();

 private:
  mutable std::map<std::string, size_t> index_;
};

std::string encode_manifest(const Manifest& manifest);
// `where` names the file in messages.
Manifest parse_manifest(const std::string& text, const std::string& where);
// The head from the first bytes of a manifest, seal not checked: for ordering checkpoints cheaply.
ManifestHead parse_manifest_head(const std::string& first_bytes, const std::string& where);

// `directory`/manifest.json: its text, and what it says, validated.
std::string read_manifest_text(io::FileSystem& files, const std::string& directory);
Manifest read_manifest(io::FileSystem& files, const std::string& directory);
ManifestHead read_manifest_head(io::FileSystem& files, const std::string& directory);

// [A-Za-z0-9._-]{1,200}, not starting with a dot.
bool is_plain_file_name(const std::string& name);

std::string hex64(uint64_t value);
// Name and version of this library, for ManifestHead::writer.
std::string writer_version();

}  // namespace tessera::checkpoint
