#include "checkpoint/file_plan.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "io/safetensors.h"

namespace tessera::checkpoint {

namespace {

std::string numbered(const char* format, int number) {
  char text[64];
  std::snprintf(text, sizeof(text), format, number);
  return text;
}

// What goes into one file: an entry's rows under a name.
struct Piece {
  size_t entry = 0;
  std::string name;
  int64_t row_begin = 0;  // of what the file holds
  int64_t row_end = 0;
  int64_t mine_begin = 0;  // of what this rank writes; empty where mine_begin == mine_end and !mine
  int64_t mine_end = 0;
  bool mine = true;
};

std::vector<int64_t> piece_shape(const StateEntry& entry, const Piece& piece) {
  std::vector<int64_t> shape = entry.shape;
  if (!shape.empty()) shape[0] = piece.row_end - piece.row_begin;
  return shape;
}

// The offsets in the form that PyTorch's reader of sharded safetensors expects.
std::string sharding_info(const std::vector<StateEntry>& entries,
                          const std::vector<Piece>& pieces) {
  nlohmann::json info = nlohmann::json::object();
  for (const Piece& piece : pieces) {
    std::vector<int64_t> offsets(entries[piece.entry].shape.size(), 0);
    if (!offsets.empty()) offsets[0] = piece.row_begin;
    info[piece.name] = {{"saved_offsets", std::move(offsets)}};
  }
  return info.dump();
}

PlannedFile plan_file(const std::vector<StateEntry>& entries, std::string name,
                      const std::vector<Piece>& pieces, bool with_offsets) {
  PlannedFile file;
  file.name = std::move(name);
  io::SafetensorsHeader header;
  header.metadata["format"] = "pt";
  if (with_offsets) {
    header.metadata["DCP_VERSION"] = "1.0";
    header.metadata["DCP_SHARDING_INFO"] = sharding_info(entries, pieces);
  }
  std::unordered_map<std::string, const Piece*> by_name;
  for (const Piece& piece : pieces) {
    const StateEntry& entry = entries[piece.entry];
    header.entries.push_back({piece.name, entry.dtype, piece_shape(entry, piece), 0, 0});
    by_name.emplace(piece.name, &piece);
  }
  file.header = io::encode_safetensors_header(header);
  file.bytes = header.data_offset + header.data_bytes;
  for (const io::SafetensorsEntry& stored : header.entries) {
    const Piece& piece = *by_name.at(stored.name);
    if (!piece.mine) continue;
    const uint64_t row_bytes = entry_row_bytes(entries[piece.entry]);
    PlannedBox box;
    box.entry = piece.entry;
    box.row_begin = piece.mine_begin;
    box.row_end = piece.mine_end;
    box.offset = header.data_offset + stored.begin +
                 static_cast<uint64_t>(piece.mine_begin - piece.row_begin) * row_bytes;
    box.bytes = static_cast<uint64_t>(piece.mine_end - piece.mine_begin) * row_bytes;
    file.boxes.push_back(box);
  }
  return file;
}

bool globally_empty(const StateEntry& entry) {
  return std::find(entry.shape.begin(), entry.shape.end(), 0) != entry.shape.end();
}

// What this rank keeps of an entry in a file of its own; nothing where another rank keeps it.
std::optional<Piece> own_piece(const StateEntry& entry, size_t index, int rank) {
  const int64_t rows = entry_rows(entry);
  Piece piece{index, entry.key, 0, rows, 0, rows, true};
  const bool whole = entry.placement != Placement::kSharded || globally_empty(entry);
  if (whole) {
    if (entry.placement != Placement::kPerRank && rank != 0) return std::nullopt;
    return piece;
  }
  // PyTorch's reader confuses an empty box with the first rows.
  if (entry.row_begin == entry.row_end) return std::nullopt;
  piece.row_begin = piece.mine_begin = entry.row_begin;
  piece.row_end = piece.mine_end = entry.row_end;
  return piece;
}

std::vector<PlannedFile> plan_own_file(const std::vector<StateEntry>& entries,
                                       const std::string& name, int rank, bool with_offsets) {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < entries.size(); ++i)
    if (auto piece = own_piece(entries[i], i, rank)) pieces.push_back(std::move(*piece));
  std::vector<PlannedFile> files;
  if (!pieces.empty()) files.push_back(plan_file(entries, name, pieces, with_offsets));
  return files;
}

// The whole entry in a shared file, of which this rank writes its rows.
Piece shared_piece(const StateEntry& entry, size_t index, int rank) {
  const int64_t rows = entry_rows(entry);
  Piece piece{index, entry.key, 0, rows, 0, rows, rank == 0};
  if (entry.placement == Placement::kSharded && !globally_empty(entry)) {
    piece.mine = entry.row_begin != entry.row_end;
    piece.mine_begin = entry.row_begin;
    piece.mine_end = entry.row_end;
  }
  return piece;
}

std::vector<PlannedFile> plan_full(const std::vector<StateEntry>& entries, int rank) {
  std::vector<Piece> model, optimizer, items, own;
  for (size_t i = 0; i < entries.size(); ++i) {
    const StateEntry& entry = entries[i];
    if (entry.role == StateRole::kOptimizer) {
      optimizer.push_back(shared_piece(entry, i, rank));
    } else if (entry.role == StateRole::kRng ||
               (entry.role == StateRole::kItem && entry.placement == Placement::kPerRank)) {
      own.push_back(*own_piece(entry, i, rank));
    } else if (entry.role == StateRole::kItem) {
      items.push_back(shared_piece(entry, i, rank));
    } else {
      // Of a buffer that differs between ranks, the plain file holds rank 0's.
      Piece piece = shared_piece(entry, i, rank);
      piece.name = full_name(entry);
      model.push_back(std::move(piece));
      if (entry.placement == Placement::kPerRank && rank != 0) {
        own.push_back(*own_piece(entry, i, rank));
        own.back().name = full_name(entry);
      }
    }
  }
  std::vector<PlannedFile> files;
  const auto add = [&](std::string name, const std::vector<Piece>& pieces, bool shared) {
    if (pieces.empty()) return;
    files.push_back(plan_file(entries, std::move(name), pieces, /*with_offsets=*/false));
    files.back().shared = shared;
  };
  add("model.safetensors", model, true);
  add("optimizer.safetensors", optimizer, true);
  add("items.safetensors", items, true);
  add(numbered("rank-%05d.safetensors", rank), own, false);
  return files;
}

}  // namespace

uint64_t entry_row_bytes(const StateEntry& entry) {
  uint64_t bytes = io::safetensors_element_size(entry.dtype);
  for (size_t dim = 1; dim < entry.shape.size(); ++dim)
    bytes *= static_cast<uint64_t>(entry.shape[dim]);
  return bytes;
}

int64_t entry_rows(const StateEntry& entry) { return entry.shape.empty() ? 1 : entry.shape[0]; }

std::string full_name(const StateEntry& entry) {
  const bool plain = entry.role == StateRole::kParameter || entry.role == StateRole::kBuffer;
  constexpr std::string_view kModel = "model.";
  const size_t at = plain ? entry.key.size() - entry.name.size() - kModel.size() : 0;
  return plain ? entry.key.substr(0, at) + entry.name : entry.key;
}

std::vector<PlannedFile> plan_files(const std::vector<StateEntry>& entries, StateDictKind kind,
                                    int rank) {
  switch (kind) {
    case StateDictKind::kFull:
      return plan_full(entries, rank);
    case StateDictKind::kLocal:
      return plan_own_file(entries, numbered("rank-%05d.local", rank), rank,
                           /*with_offsets=*/false);
    case StateDictKind::kSharded:
      break;
  }
  return plan_own_file(entries, numbered("shard-%05d-model-00001-of-00001.safetensors", rank + 1),
                       rank,
                       /*with_offsets=*/true);
}

}  // namespace tessera::checkpoint
