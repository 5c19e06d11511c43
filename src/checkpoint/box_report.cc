#include "checkpoint/box_report.h"

#include <map>
#include <set>

#include "checkpoint/box_writer.h"
#include "checkpoint/hash_sidecar.h"
#include "checkpoint/keys.h"
#include "checkpoint/manifest_check.h"
#include "checkpoint/recycle.h"
#include "io/checksum.h"

namespace tessera::checkpoint {

namespace {

StoredPlacement stored_placement(Placement placement) {
  switch (placement) {
    case Placement::kSharded:
      return StoredPlacement::kSharded;
    case Placement::kReplicated:
      return StoredPlacement::kReplicated;
    case Placement::kPerRank:
      return StoredPlacement::kPerRank;
  }
  return StoredPlacement::kReplicated;
}

// One box as a rank reports it.
struct BoxReport {
  uint64_t entry = 0;
  int64_t row_begin = 0;
  int64_t row_end = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t blocks = 0;
};

StoredTensor stored_tensor(const StateEntry& entry, StateDictKind kind) {
  StoredTensor tensor;
  tensor.key = entry.key;
  tensor.dtype = entry.dtype;
  tensor.shape = entry.shape;
  tensor.placement = stored_placement(entry.placement);
  if (kind == StateDictKind::kFull && full_name(entry) != entry.key)
    tensor.name = full_name(entry);
  if (entry.role == StateRole::kOptimizer) {
    tensor.parameter = entry.name;
    tensor.state_key = entry.state_key;
  }
  tensor.integer = entry.integer;
  return tensor;
}

// Puts the boxes of all ranks into the manifest; returns their hashes in its order.
std::vector<uint64_t> collect_boxes(const std::vector<std::string>& reports,
                                    Manifest& manifest) {
  std::map<std::string, int> file_index;
  std::vector<std::vector<std::vector<uint64_t>>> hashes(manifest.tensors.size());
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    MessageReader in(reports[rank]);
    for (auto count = in.get<uint64_t>(); count > 0; --count) {
      StoredFile file;
      file.name = in.get_text();
      file.bytes = in.get<uint64_t>();
      file.data_offset = in.get<uint64_t>();
      file.header_hash = in.get<uint64_t>();
      const auto [known, added] =
          file_index.emplace(file.name, static_cast<int>(manifest.files.size()));
      if (added) manifest.files.push_back(file);
      const auto boxes = in.get_list<BoxReport>();
      const auto blocks = in.get_list<uint64_t>();
      auto next = blocks.begin();
      for (const BoxReport& box : boxes) {
        manifest.tensors.at(box.entry).boxes.push_back({box.row_begin, box.row_end, known->second,
                                                        box.offset, box.bytes,
                                                        static_cast<int>(rank), 0});
        hashes[box.entry].emplace_back(next, next + static_cast<ptrdiff_t>(box.blocks));
        next += static_cast<ptrdiff_t>(box.blocks);
      }
    }
  }
  std::vector<uint64_t> ordered;
  for (const auto& tensor : hashes)
    for (const auto& box : tensor) ordered.insert(ordered.end(), box.begin(), box.end());
  return ordered;
}

}  // namespace

void report_file(MessageWriter& report, const PlannedFile& file,
                 const std::vector<uint64_t>& hashes) {
  std::vector<BoxReport> boxes;
  for (const PlannedBox& box : file.boxes)
    boxes.push_back({box.entry, box.row_begin, box.row_end, box.offset, box.bytes,
                     io::hash_block_count(box.bytes)});
  report.add_text(file.name).add(file.bytes).add(static_cast<uint64_t>(file.header.size()));
  report.add(io::hash_bytes(file.header.data(), file.header.size()));
  report.add_list(boxes).add_list(hashes);
}

void write_manifest(io::FileSystem& files, const SaveJob& job,
                    const std::vector<std::string>& reports) {
  Manifest manifest;
  manifest.head.save_sequence = job.sequence;
  manifest.head.step = job.step;
  manifest.head.kind = stored_kind(job.spec.kind());
  manifest.head.world_size = job.world_size;
  manifest.head.writer = writer_version();
  manifest.spec = job.spec.fields();
  manifest.layout = job.agreement.layout;
  manifest.scalars_json = job.context.scalars_json();
  manifest.aliases = job.aliases;
  for (const StateEntry& entry : job.context.entries())
    manifest.tensors.push_back(stored_tensor(entry, job.spec.kind()));
  const std::vector<uint64_t> hashes = collect_boxes(reports, manifest);
  manifest.number_blocks();
  const std::string sidecar = encode_hashes(hashes);
  manifest.hashes_hash = io::hash_bytes(sidecar.data(), sidecar.size());
  if (job.recycled) {
    std::set<std::string> listed;
    for (const StoredFile& file : manifest.files) listed.insert(file.name);
    remove_unlisted(files, job.directory, listed);
  }
  // What was just written must be what a load accepts.
  check_manifest(manifest, "the checkpoint that is being saved");
  write_new_file(files, io::join_path(job.directory, kHashesName), sidecar, job.options.sync());
  write_new_file(files, io::join_path(job.directory, kManifestName), encode_manifest(manifest),
                 job.options.sync());
}

}  // namespace tessera::checkpoint
