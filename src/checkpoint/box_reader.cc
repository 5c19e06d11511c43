#include "checkpoint/box_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "checkpoint/hash_sidecar.h"
#include "io/checksum.h"
#include "layout/reshard.h"
#include "tessera/error.h"

namespace tessera::checkpoint {

namespace {

constexpr uint64_t kBlock = io::kHashBlockBytes;
constexpr uint64_t kPieceBytes = 16 * kBlock;

}  // namespace

// Bytes [begin, end) of one box.
struct BoxReader::Piece {
  const StoredTensor* tensor = nullptr;
  const StoredBox* box = nullptr;
  uint64_t begin = 0;
  uint64_t end = 0;
  char* destination = nullptr;
};

BoxReader::BoxReader(io::FileSystem& files, std::string directory, const Manifest& manifest,
                     std::vector<uint64_t> hashes)
    : files_(files),
      directory_(std::move(directory)),
      manifest_(manifest),
      hashes_(std::move(hashes)),
      verify_(!hashes_.empty()),
      edge_(kBlock) {}

BoxReader::~BoxReader() = default;

std::vector<BoxReader::Piece> BoxReader::pieces_of(const ReadRequest& request) const {
  const StoredTensor& tensor = *request.tensor;
  std::vector<const StoredBox*> boxes;
  std::vector<layout::RowRange> ranges;
  for (const StoredBox& box : tensor.boxes) {
    if (tensor.placement == StoredPlacement::kPerRank && box.rank != request.rank) continue;
    boxes.push_back(&box);
    ranges.push_back({box.row_begin, box.row_end});
  }
  const uint64_t row_bytes = tensor.row_bytes();
  std::vector<Piece> pieces;
  for (const layout::RowPiece& rows : layout::cover_rows(ranges, request.rows)) {
    Piece piece;
    piece.tensor = &tensor;
    piece.box = boxes[static_cast<size_t>(rows.box)];
    piece.begin = static_cast<uint64_t>(rows.source_row) * row_bytes;
    piece.end = piece.begin + static_cast<uint64_t>(rows.rows.size()) * row_bytes;
    piece.destination = static_cast<char*>(request.destination) +
                        static_cast<uint64_t>(rows.target_row) * row_bytes;
    if (piece.begin != piece.end) pieces.push_back(piece);
  }
  return pieces;
}

void BoxReader::read(const std::vector<ReadRequest>& requests) {
  std::vector<Piece> pieces;
  for (const ReadRequest& request : requests)
    for (const Piece& piece : pieces_of(request)) pieces.push_back(piece);
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    return std::tuple(a.box->file, a.box->offset + a.begin) <
           std::tuple(b.box->file, b.box->offset + b.begin);
  });
  for (const Piece& piece : pieces) read_piece(piece);
}

void BoxReader::read_piece(const Piece& piece) {
  char* destination = piece.destination;
  uint64_t at = piece.begin;
  while (at < piece.end) {
    const uint64_t block_begin = at / kBlock * kBlock;
    const uint64_t block_end = std::min(block_begin + kBlock, piece.box->bytes);
    uint64_t next = 0;
    if (verify_ && (at != block_begin || piece.end < block_end)) {
      next = std::min(block_end, piece.end);
      read_edge(piece, block_begin / kBlock, at, next, destination);
    } else {
      // As many whole blocks as are wanted; the box's last block may be short.
      next = std::min(at + kPieceBytes, piece.end);
      if (verify_ && next != piece.box->bytes) next = next / kBlock * kBlock;
      read_blocks(piece, at, destination, next - at);
    }
    destination += next - at;
    at = next;
  }
}

void BoxReader::read_blocks(const Piece& piece, uint64_t begin, char* destination, size_t size) {
  file(piece.box->file).read_at(piece.box->offset + begin, destination, size);
  bytes_read_ += size;
  if (verify_) check(piece, begin / kBlock, destination, size);
}

void BoxReader::read_edge(const Piece& piece, size_t block, uint64_t begin, uint64_t end,
                          char* destination) {
  const uint64_t block_begin = block * kBlock;
  const size_t size = std::min(kBlock, piece.box->bytes - block_begin);
  read_blocks(piece, block_begin, edge_.data(), size);
  std::copy(edge_.data() + (begin - block_begin), edge_.data() + (end - block_begin), destination);
}

void BoxReader::check(const Piece& piece, size_t first_block, const char* data, size_t size) {
  actual_.clear();
  io::hash_blocks(data, size, actual_);
  for (size_t i = 0; i < actual_.size(); ++i) {
    if (actual_[i] == hashes_[piece.box->first_block + first_block + i]) continue;
    const StoredFile& stored = manifest_.files[static_cast<size_t>(piece.box->file)];
    throw CorruptionError(io::join_path(
        directory_, describe_damage(stored, *piece.tensor, *piece.box, first_block + i)));
  }
}

io::File& BoxReader::file(int index) {
  if (open_ && open_index_ == index) return *open_;
  const StoredFile& stored = manifest_.files[static_cast<size_t>(index)];
  auto opened = open_listed(files_, directory_, stored.name);
  // No value comes from the header, but a damaged one is a damaged file, and other readers use it.
  const std::string problem = verify_ ? check_header(*opened, stored) : check_size(*opened, stored);
  if (!problem.empty()) throw CorruptionError(io::join_path(directory_, problem));
  bytes_read_ += verify_ ? stored.data_offset : 0;
  open_ = std::move(opened);
  open_index_ = index;
  return *open_;
}

}  // namespace tessera::checkpoint
