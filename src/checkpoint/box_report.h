// What a rank tells rank 0 of the files that it wrote, and the manifest that rank 0 makes of it.
//
// Threads: one at a time. Cost: 48 bytes a box and 8 a block.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/agree.h"
#include "checkpoint/save_job.h"

namespace tessera::checkpoint {

// Appends a file that was written and the hashes of its blocks.
void report_file(MessageWriter& report, const PlannedFile& file,
                 const std::vector<uint64_t>& hashes);

// Writes manifest and hashes into the job's directory from the reports of all ranks.
void write_manifest(io::FileSystem& files, const SaveJob& job,
                    const std::vector<std::string>& reports);

}  // namespace tessera::checkpoint
