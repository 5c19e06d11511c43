// The command line of tessera-run.
//
// Everything from the program name on belongs to the program and is never looked at.
// Errors: UsageError with one line that says what is wrong.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace tessera::launch {

inline constexpr int kMaxRanks = 4096;

// Which ranks show their output on the launcher's own streams.
class ConsoleFilter {
 public:
  // "all", "rank0", "none", or a list such as "0,2-5".
  static ConsoleFilter parse(const std::string& text);
  bool shows(int rank) const;
  bool shows_all() const { return all_; }
  // The highest rank that is named; -1 where none is.
  int max_rank() const;

 private:
  bool all_ = true;
  std::vector<std::pair<int, int>> ranges_;
};

struct LaunchOptions {
  int nproc = 0;
  std::chrono::milliseconds grace{std::chrono::seconds(30)};
  std::string log_dir;
  ConsoleFilter console;
  bool prefix = true;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;
  int max_restarts = 0;
  std::optional<std::chrono::milliseconds> timeout;
  bool help = false;
  bool version = false;
  std::vector<std::string> command;
};

LaunchOptions parse_options(int argc, const char* const* argv);
std::string usage_text();

// Cores this process may run on.
int available_cores();

}  // namespace tessera::launch
