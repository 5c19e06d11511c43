// Training text: the bytes of one file, or of every regular file below a folder in sorted order.
//
// Threads: free functions. Cost: reads everything into memory once (each rank its own copy).
// Errors: UsageError naming the path where it is missing, empty or no file or folder; IoError where
// the system refuses to read it.
#pragma once

#include <cstdint>
#include <string>

namespace tessera::train {

struct Text {
  std::string bytes;
  std::string source;  // the path as it was given
  int64_t files = 0;
  std::string
      digest;  // of the bytes, 16 hex digits: tells whether a resumed run sees the same text
};

Text load_text(const std::string& path);

}  // namespace tessera::train
