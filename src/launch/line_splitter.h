// Cuts a stream of bytes into lines, whatever the pieces it arrives in.
//
// A line is handed out with its newline. A line longer than the limit is handed out in parts of
// that size, so that a stream without newlines cannot fill the memory. Threads: one thread. Cost: a
// complete line inside one piece is not copied.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace tessera::launch {

class LineSplitter {
 public:
  static constexpr size_t kDefaultLimit = size_t{8} << 20;
  explicit LineSplitter(size_t limit = kDefaultLimit) : limit_(limit) {}

  // Calls emit(std::string_view) for every line that `data` completes.
  template <typename Emit>
  void feed(std::string_view data, Emit&& emit) {
    while (!data.empty()) {
      const size_t newline = data.find('\n');
      const bool complete = newline != std::string_view::npos;
      const size_t room = limit_ - partial_.size();
      const size_t take = std::min(complete ? newline + 1 : data.size(), room);
      const std::string_view piece = data.substr(0, take);
      data.remove_prefix(take);
      if (partial_.empty() && piece.back() == '\n') {
        emit(piece);
        continue;
      }
      partial_.append(piece);
      if (partial_.back() == '\n' || partial_.size() >= limit_) flush(emit);
    }
  }

  // Hands out what has no newline yet; call it at the end of the stream.
  template <typename Emit>
  void flush(Emit&& emit) {
    if (partial_.empty()) return;
    const std::string line = std::exchange(partial_, {});
    emit(std::string_view(line));
  }

 private:
  size_t limit_;
  std::string partial_;
};

}  // namespace tessera::launch
