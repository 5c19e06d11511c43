// A small checkpoint directory made without torch, from which tests make damaged ones.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/hash_sidecar.h"
#include "checkpoint/manifest.h"
#include "io/checksum.h"
#include "io/safetensors.h"

namespace tessera::checkpoint {

// Two ranks; 'model.w' F32 [5, 40000] as rows 0-3 and 3-5 (several hash blocks),
// 'optim.state.w.step' = 7 on rank 0.
inline Manifest write_sample(io::FileSystem& files, const std::string& directory,
                             uint64_t sequence = 1, int64_t step = 7) {
  files.create_directories(directory);
  Manifest manifest;
  manifest.head.save_sequence = sequence;
  manifest.head.step = step;
  manifest.head.world_size = 2;
  manifest.head.writer = writer_version();
  manifest.spec = {{"kind", "sharded"}, {"key_scheme", "fqn-1"}};
  manifest.layout = "0123456789abcdef";
  manifest.scalars_json = R"({"items":{"epoch":3}})";
  manifest.tensors.resize(2);
  manifest.tensors[0] = {"model.w", "F32", {5, 40000}, StoredPlacement::kSharded, "", "",
                         "",        {},    {}};
  manifest.tensors[1] = {
      "optim.state.w.step", "F32", {}, StoredPlacement::kReplicated, "", "w", "step", 7, {}};
  std::vector<std::vector<uint64_t>> hashes(2);
  for (int rank = 0; rank < 2; ++rank) {
    const int64_t begin = rank == 0 ? 0 : 3, end = rank == 0 ? 3 : 5;
    io::SafetensorsHeader header;
    header.metadata["format"] = "pt";
    header.entries.push_back({"model.w", "F32", {end - begin, 40000}, 0, 0});
    if (rank == 0) header.entries.push_back({"optim.state.w.step", "F32", {}, 0, 0});
    std::string content = io::encode_safetensors_header(header);
    StoredFile file{"shard-0000" + std::to_string(rank + 1) + ".safetensors", 0, header.data_offset,
                    io::hash_bytes(content.data(), content.size())};
    for (const io::SafetensorsEntry& entry : header.entries) {
      const bool is_step = entry.shape.empty();
      std::vector<float> values((entry.end - entry.begin) / sizeof(float), 7.0F);
      for (size_t i = 0; i < values.size() && !is_step; ++i)
        values[i] = static_cast<float>(begin * 40000 + static_cast<int64_t>(i));
      const size_t bytes = values.size() * sizeof(float);
      StoredBox box{begin, end, rank, content.size(), bytes, rank, 0};
      if (is_step) box.row_begin = 0, box.row_end = 1;
      manifest.tensors[is_step ? 1 : 0].boxes.push_back(box);
      io::hash_blocks(values.data(), bytes, hashes[is_step ? 1 : 0]);
      content.append(reinterpret_cast<const char*>(values.data()), bytes);
    }
    file.bytes = content.size();
    manifest.files.push_back(file);
    io::write_file(files, io::join_path(directory, file.name), content);
  }
  manifest.number_blocks();
  std::vector<uint64_t> ordered = hashes[0];
  ordered.insert(ordered.end(), hashes[1].begin(), hashes[1].end());
  const std::string sidecar = encode_hashes(ordered);
  manifest.hashes_hash = io::hash_bytes(sidecar.data(), sidecar.size());
  io::write_file(files, io::join_path(directory, kHashesName), sidecar);
  io::write_file(files, io::join_path(directory, kManifestName), encode_manifest(manifest));
  return manifest;
}

}  // namespace tessera::checkpoint
