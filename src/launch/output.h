// What the ranks print, and what the launcher itself says.
//
// Every rank has a pipe for each of its two streams. Whole lines go to the launcher's own stream of
// the same kind, prefixed with the rank and never mixed; all bytes go unchanged to the log files;
// the last lines of standard error are kept for the report of a failure. A rank without prefix and
// company (one rank, --no-prefix, no log) has the launcher's streams themselves instead.
//
// Threads: one thread, driven by poll(). A slow reader of the console slows the ranks down and
// loses nothing. Cost: one read and two copies of every byte; at most kHighWater queued for the
// console.
#pragma once

#include <poll.h>

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launch/console_sink.h"
#include "launch/fd.h"
#include "launch/line_splitter.h"
#include "launch/options.h"

namespace tessera::launch {

struct OutputOptions {
  int nproc = 1;
  bool prefix = true;
  ConsoleFilter console;
  std::string log_dir;
};

class Output {
 public:
  static constexpr size_t kTailLines = 20;

  // Creates the log directory; throws IoError where that fails.
  explicit Output(OutputOptions options);
  ~Output();

  // One message of the launcher on standard error.
  void say(std::string_view message);
  void say_plain(std::string_view line);

  // The write ends for one rank; the caller closes them after the start of the process.
  struct RankEnds {
    int out = 1;
    int err = 2;
    UniqueFd owned_out;
    UniqueFd owned_err;
  };
  RankEnds open_rank(int rank, int attempt);
  // What is in the pipes at this moment is still to be read.
  void rank_ended(int rank);

  void add_polls(std::vector<pollfd>& polls);
  void handle_polls(const std::vector<pollfd>& polls);

  // Every pipe was closed by all processes that had it.
  bool closed() const;
  // Everything that ended ranks had written was read; others may still hold a pipe.
  bool drained() const;
  // Ends all pipes, with their last unfinished lines.
  void close_ranks();

  bool pending() const;
  std::vector<std::string> stderr_tail(int rank) const;

 private:
  struct Stream;
  bool inherits() const;
  UniqueFd open_log(int rank, int attempt, const char* kind);
  void read_some(Stream& stream);
  void emit(Stream& stream, std::string_view line);
  void write_log(Stream& stream, std::string_view data);
  void finish(Stream& stream);
  void write_some(ConsoleSink& sink, const char* name);

  OutputOptions options_;
  std::vector<std::unique_ptr<ConsoleSink>> sinks_;  // one where both streams are the same file
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<std::deque<std::string>> tails_;
  std::vector<Stream*> polled_;
  size_t first_poll_ = 0;
  std::vector<char> read_buffer_;
};

}  // namespace tessera::launch
