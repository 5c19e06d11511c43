// What a person sees while a run goes on: one line that is overprinted on a terminal, a plain line
// every few steps otherwise.
//
// Threads: one. Only rank 0 has one. Cost: one write call a shown step; at most ten a second on a
// terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::train {

struct ProgressState {
  int64_t step = 0;
  int64_t steps = 0;
  double loss = 0;
  double tokens_per_second = 0;
  double seconds_per_step = 0;
  std::string checkpoint;  // e.g. "saved step-00000020"; empty where there is none yet
};

// "12s", "3m05s", "2h07m".
std::string format_duration(double seconds);
// "step 20/60  loss 3.4567  1234 tokens/s  ETA 12s  saved step-00000020".
std::string format_progress(const ProgressState& state);
// The middle is left out where the line has more than `width` characters.
std::string elide_middle(std::string_view line, size_t width);

class Progress {
 public:
  // Shows every `log_every`-th step where `fd` is no terminal.
  Progress(int fd, int64_t log_every);

  void update(const ProgressState& state);
  // A line that stays, above the overprinted one.
  void message(const std::string& line);
  // Leaves the last progress line standing.
  void finish();
  // Whether some of the output could not be written.
  bool output_lost() const { return output_lost_; }

 private:
  void write(std::string_view text);
  void overprint(const std::string& line);
  void clear_line();

  int fd_;
  int64_t log_every_;
  bool terminal_;
  bool line_open_ = false;
  bool output_lost_ = false;
  std::string pending_;
  std::chrono::steady_clock::time_point last_shown_{};
};

}  // namespace tessera::train
