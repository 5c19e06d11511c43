#include "checkpoint/box_writer.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "checkpoint/host_bytes.h"
#include "checkpoint/recycle.h"
#include "io/checksum.h"

namespace tessera::checkpoint {

namespace {

constexpr size_t kPieceBytes = 16 * io::kHashBlockBytes;

void write_box(io::File& out, uint64_t offset, const HostBytes& bytes,
               std::vector<uint64_t>& hashes, const OnWritten& on_written) {
  const auto* data = static_cast<const char*>(bytes.data());
  const size_t size = bytes.size();
  for (size_t done = 0; done < size; done += kPieceBytes) {
    const size_t piece = std::min(kPieceBytes, size - done);
    io::hash_blocks(data + done, piece, hashes);
    out.write_at(offset + done, data + done, piece);
    on_written(offset + done, piece);
  }
}

}  // namespace

std::unique_ptr<io::File> create_planned(io::FileSystem& files, const std::string& directory,
                                         const PlannedFile& file, bool recycled) {
  const std::string path = io::join_path(directory, file.name);
  auto out = recycled ? open_recycled(files, path, file.bytes) : nullptr;
  if (!out) {
    out = files.open(path, io::OpenMode::kCreate);
    out->allocate(file.bytes);
  }
  out->write_at(0, file.header.data(), file.header.size());
  return out;
}

void write_boxes(io::File& out, const PlannedFile& file, const std::vector<StateEntry>& entries,
                 std::vector<uint64_t>& hashes, const OnWritten& on_written) {
  for (const PlannedBox& box : file.boxes) {
    const StateEntry& entry = entries[box.entry];
    if (entry.integer) {
      write_box(out, box.offset, HostBytes(*entry.integer), hashes, on_written);
      continue;
    }
    const HostBytes bytes(entry.tensor);
    TORCH_CHECK(bytes.size() == box.bytes, "'", entry.key, "' has ", bytes.size(), " bytes here, ",
                box.bytes, " were planned: it changed during the save");
    write_box(out, box.offset, bytes, hashes, on_written);
  }
}

void write_new_file(io::FileSystem& files, const std::string& path, const std::string& content,
                    bool sync) {
  auto file = files.open(path, io::OpenMode::kCreate);
  file->write_at(0, content.data(), content.size());
  if (sync) file->sync();
  file->close();
}

}  // namespace tessera::checkpoint
