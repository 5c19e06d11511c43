#include "launch/console_sink.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>

namespace tessera::launch {
namespace {

// A pipe or terminal that poll() calls ready takes this much without blocking; a file any amount.
size_t safe_piece(int fd) {
  constexpr size_t kFilePiece = size_t{1} << 16;
  struct stat info {};
  return ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) ? kFilePiece : PIPE_BUF;
}

}  // namespace

ConsoleSink::ConsoleSink(int fd) : fd_(fd), piece_size_(safe_piece(fd)) {}

void ConsoleSink::append(std::string_view text) {
  if (!closed()) buffer_.append(text);
}

std::string_view ConsoleSink::next_piece() const {
  const std::string_view rest = std::string_view(buffer_).substr(head_);
  if (rest.size() <= piece_size_) return rest;
  const size_t line_end = rest.rfind('\n', piece_size_ - 1);
  return rest.substr(0, line_end == std::string_view::npos ? piece_size_ : line_end + 1);
}

void ConsoleSink::write_some() {
  if (!pending()) return;
  const std::string_view piece = next_piece();
  const ssize_t written = ::write(fd_, piece.data(), piece.size());
  if (written < 0) {
    if (errno == EINTR || errno == EAGAIN) return;
    error_ = errno;
    buffer_.clear();
    head_ = 0;
    return;
  }
  head_ += static_cast<size_t>(written);
  if (head_ == buffer_.size()) {
    buffer_.clear();
    head_ = 0;
  } else if (head_ > kHighWater) {
    buffer_.erase(0, head_);
    head_ = 0;
  }
}

bool ConsoleSink::same_file(int a, int b) {
  struct stat first {};
  struct stat second {};
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

}  // namespace tessera::launch
