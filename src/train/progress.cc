#include "progress.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdlib>

namespace tessera::train {
namespace {

constexpr std::chrono::milliseconds kRedrawInterval{100};
constexpr std::string_view kClearLine = "\r\x1b[K";

bool is_smart_terminal(int fd) {
  const char* term = std::getenv("TERM");
  return ::isatty(fd) == 1 && term != nullptr && std::string_view(term) != "dumb";
}

size_t terminal_width(int fd) {
  constexpr size_t kDefaultWidth = 80;
  struct winsize size {};
  if (::ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kDefaultWidth;
  return size.ws_col;
}

// Training goes on where the output fails. Whether everything was written.
bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  const auto total = static_cast<int64_t>(std::llround(seconds));
  if (total < 60) return fmt::format("{}s", total);
  if (total < 3600) return fmt::format("{}m{:02}s", total / 60, total % 60);
  return fmt::format("{}h{:02}m", total / 3600, total % 3600 / 60);
}

std::string format_progress(const ProgressState& state) {
  const double left = static_cast<double>(state.steps - state.step) * state.seconds_per_step;
  std::string line =
      fmt::format("step {}/{}  loss {:.4f}  {:.0f} tokens/s  ETA {}", state.step, state.steps,
                  state.loss, state.tokens_per_second, format_duration(left));
  if (!state.checkpoint.empty()) line += "  " + state.checkpoint;
  return line;
}

std::string elide_middle(std::string_view line, size_t width) {
  constexpr std::string_view kDots = "...";
  if (line.size() <= width) return std::string(line);
  if (width <= kDots.size()) return std::string(kDots.substr(0, width));
  const size_t kept = width - kDots.size();
  const size_t tail = kept / 2;
  std::string elided(line.substr(0, kept - tail));
  elided.append(kDots).append(line.substr(line.size() - tail));
  return elided;
}

Progress::Progress(int fd, int64_t log_every)
    : fd_(fd), log_every_(log_every), terminal_(is_smart_terminal(fd)) {}

void Progress::write(std::string_view text) {
  if (!write_all(fd_, text)) output_lost_ = true;
}

void Progress::update(const ProgressState& state) {
  const bool last = state.step >= state.steps;
  if (!terminal_) {
    if (last || state.step == 1 || state.step % log_every_ == 0) {
      write(format_progress(state) + "\n");
    }
    return;
  }
  pending_ = format_progress(state);
  const auto now = std::chrono::steady_clock::now();
  if (!last && now - last_shown_ < kRedrawInterval) return;
  last_shown_ = now;
  overprint(pending_);
}

void Progress::overprint(const std::string& line) {
  write(std::string(kClearLine) + elide_middle(line, terminal_width(fd_)));
  line_open_ = true;
}

void Progress::clear_line() {
  if (line_open_) write(kClearLine);
  line_open_ = false;
}

void Progress::message(const std::string& line) {
  clear_line();
  write(line + "\n");
}

void Progress::finish() {
  if (!terminal_ || pending_.empty()) return;
  overprint(pending_);
  write("\n");
  line_open_ = false;
  pending_.clear();
}

}  // namespace tessera::train
