// What this machine can do at best: the same bytes, written and read with as little as possible.
//
// Threads: any. Torch-free. Errors are std::system_error.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace tessera::bench {

struct RawWrite {
  std::string path;
  size_t offset = 0;  // where this rank's bytes begin
  size_t file_bytes = 0;
  bool create = true;  // else the file is there already
  bool sync = false;
  size_t piece_bytes = ~size_t{0};  // of one call
  bool hashed = false;              // each piece before it is written, as a save does
};

// Allocates the whole file, then writes `data` at its place.
void raw_write(const RawWrite& request, const std::vector<char>& data);

// Reads a file into memory that was touched before; returns how much it held.
size_t raw_read(const std::string& path, std::vector<char>& into);

// A small file, as a manifest is; synced where asked.
void write_small(const std::string& path, size_t bytes, bool sync);
void sync_directory(const std::string& path);

// Takes `bytes` of fresh memory, writes to each page, and gives it back.
void touch_memory(size_t bytes);

struct Memory {
  size_t resident = 0;
  size_t peak = 0;          // since reset_peak()
  size_t proportional = 0;  // PSS
};
Memory memory_now();
void reset_peak();

}  // namespace tessera::bench
