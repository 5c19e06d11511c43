// Writes this rank's boxes into a file, hashing every block while it is in the cache.
//
// Threads: one a file. Cost: one pass over the data, no copy of tensors on the CPU.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "checkpoint/file_plan.h"
#include "io/file_system.h"

namespace tessera::checkpoint {

// Creates `file` in `directory`, reserves its space and writes the header; returns it open. With
// `recycled` one of its name and size is taken as it is.
std::unique_ptr<io::File> create_planned(io::FileSystem& files, const std::string& directory,
                                         const PlannedFile& file, bool recycled = false);

// Offset and size of a piece, of up to 1 MiB.
using OnWritten = std::function<void(uint64_t, size_t)>;

// Writes the boxes in the order of their offsets; appends the hashes of each box's blocks, box after
// box. `on_written` hears of every piece.
void write_boxes(io::File& out, const PlannedFile& file, const std::vector<StateEntry>& entries,
                 std::vector<uint64_t>& hashes, const OnWritten& on_written);

// A new file with this content.
void write_new_file(io::FileSystem& files, const std::string& path, const std::string& content,
                    bool sync);

}  // namespace tessera::checkpoint
