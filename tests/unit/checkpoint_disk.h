// Checkpoint directories on a disk in memory: made once, copied, damaged, put right again.
#pragma once

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "io/crash_file_system.h"
#include "io/file_system.h"

namespace tessera::checkpoint {

// The long form of a suite; the short one runs everywhere.
inline bool is_long_run() {
  const char* value = std::getenv("TESSERA_LONG_TESTS");
  return value != nullptr && std::string(value) == "1";
}

inline std::string content_of(io::FileSystem& files, const std::string& path) {
  return io::read_file(files, path, uint64_t{1} << 30);
}

inline void put_content(io::FileSystem& files, const std::string& path,
                        const std::string& content) {
  if (files.exists(path)) files.remove_file(path);
  io::write_file(files, path, content);
}

inline std::vector<std::string> children_of(io::FileSystem& files, const std::string& path) {
  std::vector<std::string> names;
  if (!files.is_directory(path)) return names;
  for (const io::DirectoryEntry& entry : files.list(path)) names.push_back(entry.name);
  return names;
}

inline void copy_tree(io::FileSystem& from, io::FileSystem& to, const std::string& path) {
  to.create_directories(path);
  for (const io::DirectoryEntry& entry : from.list(path)) {
    const std::string child = io::join_path(path, entry.name);
    if (entry.is_directory)
      copy_tree(from, to, child);
    else
      put_content(to, child, content_of(from, child));
  }
}

}  // namespace tessera::checkpoint
