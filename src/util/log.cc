#include "util/log.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

namespace tessera::log {
namespace {

Level level_from_environment() {
  const char* value = std::getenv("TESSERA_LOG");
  if (value == nullptr) return Level::kInfo;
  if (std::strcmp(value, "debug") == 0) return Level::kDebug;
  if (std::strcmp(value, "warning") == 0) return Level::kWarning;
  if (std::strcmp(value, "error") == 0) return Level::kError;
  return Level::kInfo;
}

struct State {
  std::atomic<int> rank{-1};
  std::atomic<int> world_size{1};
  std::atomic<Level> level{level_from_environment()};
};

State& state() {
  static State instance;
  return instance;
}

void write_line(Level level, std::string_view tag, std::string_view message) {
  if (level < state().level.load(std::memory_order_relaxed)) return;
  const int rank = state().rank.load(std::memory_order_relaxed);
  std::string line = "tessera";
  if (rank >= 0 && state().world_size.load(std::memory_order_relaxed) > 1) {
    line += " [rank " + std::to_string(rank) + "]";
  }
  line.append(tag).append(message).push_back('\n');
  const char* data = line.data();
  size_t left = line.size();
  while (left > 0) {
    const ssize_t written = ::write(STDERR_FILENO, data, left);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // nowhere left to report to
    data += written;
    left -= static_cast<size_t>(written);
  }
}

}  // namespace

void set_rank(int rank, int world_size) {
  state().rank = rank;
  state().world_size = world_size;
}
void set_level(Level level) { state().level = level; }

void debug(std::string_view message) { write_line(Level::kDebug, " debug: ", message); }
void info(std::string_view message) { write_line(Level::kInfo, ": ", message); }
void warning(std::string_view message) { write_line(Level::kWarning, " warning: ", message); }
void error(std::string_view message) { write_line(Level::kError, " error: ", message); }

void info_rank0(std::string_view message) {
  if (state().rank.load(std::memory_order_relaxed) <= 0) info(message);
}
void warning_rank0(std::string_view message) {
  if (state().rank.load(std::memory_order_relaxed) <= 0) warning(message);
}

}  // namespace tessera::log
