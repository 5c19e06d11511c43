// Which files a rank writes for a state dict, and where every box lies in them.
//
// A pure function of the entries, which all ranks agree on, and of the rank: nothing is exchanged,
// and for FULL every rank knows the same layout of the shared files and writes its own rows.
// Threads: values. Cost: O(entries log entries).
#pragma once

#include <string>
#include <vector>

#include "tessera/checkpoint.h"

namespace tessera::checkpoint {

struct PlannedBox {
  size_t entry = 0;  // index into the context's entries
  int64_t row_begin = 0;
  int64_t row_end = 0;
  uint64_t offset = 0;  // absolute in the file
  uint64_t bytes = 0;
};

struct PlannedFile {
  std::string name;
  std::string header;             // the first bytes of the file
  uint64_t bytes = 0;             // of the whole file
  bool shared = false;            // rank 0 creates it, all ranks write
  std::vector<PlannedBox> boxes;  // this rank's, by offset
};

std::vector<PlannedFile> plan_files(const std::vector<StateEntry>& entries, StateDictKind kind,
                                    int rank);

// The name that an entry has inside of a FULL file: parameters and buffers go by their plain names.
std::string full_name(const StateEntry& entry);

uint64_t entry_row_bytes(const StateEntry& entry);
int64_t entry_rows(const StateEntry& entry);

}  // namespace tessera::checkpoint
