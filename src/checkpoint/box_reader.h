// Reads rows of stored tensors straight into their place, and only the bytes that they need:
// rounded to hash blocks where they are verified.
//
// Threads: one thread. Cost: every needed byte once, no copy but of a block at each end of a piece.
// Errors: CorruptionError naming file, tensor and byte range; IoError.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "io/file_system.h"
#include "layout/flat_layout.h"

namespace tessera::checkpoint {

// Rows of a tensor and where they go. For kPerRank tensors, `rank` says whose value.
struct ReadRequest {
  const StoredTensor* tensor = nullptr;
  layout::RowRange rows;
  int rank = 0;
  void* destination = nullptr;
};

class BoxReader {
 public:
  // `hashes` empty: nothing is verified.
  BoxReader(io::FileSystem& files, std::string directory, const Manifest& manifest,
            std::vector<uint64_t> hashes);
  ~BoxReader();

  // Serves the requests in the order of files and offsets.
  void read(const std::vector<ReadRequest>& requests);
  uint64_t bytes_read() const { return bytes_read_; }

 private:
  struct Piece;
  std::vector<Piece> pieces_of(const ReadRequest& request) const;
  void read_piece(const Piece& piece);
  void read_blocks(const Piece& piece, uint64_t begin, char* destination, size_t size);
  void read_edge(const Piece& piece, size_t block, uint64_t begin, uint64_t end, char* destination);
  void check(const Piece& piece, size_t first_block, const char* data, size_t size);
  io::File& file(int index);

  io::FileSystem& files_;
  std::string directory_;
  const Manifest& manifest_;
  std::vector<uint64_t> hashes_;
  bool verify_;
  std::unique_ptr<io::File> open_;  // one at a time: there may be thousands
  int open_index_ = -1;
  std::vector<char> edge_;
  std::vector<uint64_t> actual_;
  uint64_t bytes_read_ = 0;
};

}  // namespace tessera::checkpoint
