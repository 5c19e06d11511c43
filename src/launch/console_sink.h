// One of the launcher's own output streams, written without ever blocking the launcher.
//
// Text is queued and written when poll() finds the stream ready, in pieces that end at a line end
// where one fits, so that several launchers on one pipe do not break each other's lines. When the
// reader has gone, output is dropped and the run goes on.
// Threads: one thread. Cost: one copy of the text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tessera::launch {

class ConsoleSink {
 public:
  explicit ConsoleSink(int fd);

  int fd() const { return fd_; }
  void append(std::string_view text);
  bool pending() const { return head_ < buffer_.size(); }
  // Whoever feeds this sink should wait.
  bool full() const { return buffer_.size() - head_ > kHighWater; }
  // True once the reader is gone or the stream failed; `error` is why.
  bool closed() const { return error_ != 0; }
  int error() const { return error_; }
  // Writes one piece; call when poll() reports the stream as ready.
  void write_some();
  // Both end in the same file, pipe or terminal.
  static bool same_file(int a, int b);

 private:
  static constexpr size_t kHighWater = size_t{1} << 20;
  std::string_view next_piece() const;

  int fd_;
  size_t piece_size_;
  int error_ = 0;
  std::string buffer_;
  size_t head_ = 0;
};

}  // namespace tessera::launch
