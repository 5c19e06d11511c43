#include "launch/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>

#include <filesystem>

namespace tessera::launch {
namespace {

constexpr size_t kReadSize = size_t{1} << 16;
constexpr size_t kTailLineBytes = 1000;

int write_all(int fd, std::string_view data) {
  while (!data.empty()) {
    const ssize_t written = ::write(fd, data.data(), data.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    data.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

std::string tail_line(std::string_view line) {
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.remove_suffix(1);
  if (line.size() <= kTailLineBytes) return std::string(line);
  return fmt::format("{}... ({} bytes)", line.substr(0, kTailLineBytes), line.size());
}

}  // namespace

struct Output::Stream {
  int rank = 0;
  bool is_stderr = false;
  ConsoleSink* sink = nullptr;  // none where the console does not show this rank
  std::string prefix;
  UniqueFd pipe;
  UniqueFd log;
  LineSplitter splitter;
  std::optional<size_t> owed;  // bytes that an ended rank had left in the pipe
};

Output::Output(OutputOptions options) : options_(std::move(options)), read_buffer_(kReadSize) {
  sinks_.push_back(std::make_unique<ConsoleSink>(STDERR_FILENO));
  if (!ConsoleSink::same_file(STDOUT_FILENO, STDERR_FILENO)) {
    sinks_.push_back(std::make_unique<ConsoleSink>(STDOUT_FILENO));
  }
  tails_.resize(static_cast<size_t>(options_.nproc));
  if (options_.log_dir.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(options_.log_dir, error);
  if (error) {
    throw IoError(fmt::format("--log-dir {}: {}", options_.log_dir, error.message()),
                  error.value());
  }
}

Output::~Output() = default;

bool Output::inherits() const {
  return options_.nproc == 1 && !options_.prefix && options_.log_dir.empty() &&
         options_.console.shows(0);
}

void Output::say(std::string_view message) { say_plain(fmt::format("tessera-run: {}", message)); }

void Output::say_plain(std::string_view line) {
  sinks_.front()->append(line);
  sinks_.front()->append("\n");
}

UniqueFd Output::open_log(int rank, int attempt, const char* kind) {
  if (options_.log_dir.empty()) return UniqueFd();
  const std::string path =
      attempt == 0 ? fmt::format("{}/rank-{}.{}", options_.log_dir, rank, kind)
                   : fmt::format("{}/rank-{}.attempt-{}.{}", options_.log_dir, rank, attempt, kind);
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!fd) throw_errno(fmt::format("cannot open the log file {}", path));
  return fd;
}

Output::RankEnds Output::open_rank(int rank, int attempt) {
  tails_[static_cast<size_t>(rank)].clear();
  RankEnds ends;
  if (inherits()) return ends;
  const auto open_stream = [&](bool is_stderr) {
    Pipe pipe = make_pipe();
    auto stream = std::make_unique<Stream>();
    stream->rank = rank;
    stream->is_stderr = is_stderr;
    if (options_.console.shows(rank)) {
      stream->sink = is_stderr ? sinks_.front().get() : sinks_.back().get();
    }
    if (options_.prefix) stream->prefix = fmt::format("[rank {}] ", rank);
    stream->pipe = std::move(pipe.read_end);
    stream->log = open_log(rank, attempt, is_stderr ? "stderr" : "stdout");
    streams_.push_back(std::move(stream));
    return std::move(pipe.write_end);
  };
  ends.owned_out = open_stream(false);
  ends.owned_err = open_stream(true);
  ends.out = ends.owned_out.get();
  ends.err = ends.owned_err.get();
  return ends;
}

void Output::rank_ended(int rank) {
  for (const auto& stream : streams_) {
    if (stream->rank != rank || !stream->pipe) continue;
    int left = 0;
    if (::ioctl(stream->pipe.get(), FIONREAD, &left) != 0) left = 0;
    stream->owed = static_cast<size_t>(left);
  }
}

void Output::add_polls(std::vector<pollfd>& polls) {
  first_poll_ = polls.size();
  for (const auto& sink : sinks_) {
    polls.push_back({sink->pending() ? sink->fd() : -1, POLLOUT, 0});
  }
  polled_.clear();
  for (const auto& stream : streams_) {
    if (!stream->pipe || (stream->sink != nullptr && stream->sink->full())) continue;
    polls.push_back({stream->pipe.get(), POLLIN, 0});
    polled_.push_back(stream.get());
  }
}

void Output::handle_polls(const std::vector<pollfd>& polls) {
  size_t at = first_poll_;
  for (const auto& sink : sinks_) {
    if (polls[at++].revents != 0) {
      write_some(*sink, sink->fd() == STDERR_FILENO ? "standard error" : "standard output");
    }
  }
  for (Stream* stream : polled_) {
    if (polls[at++].revents != 0) read_some(*stream);
  }
}

void Output::write_some(ConsoleSink& sink, const char* name) {
  const bool was_closed = sink.closed();
  sink.write_some();
  if (!was_closed && sink.closed()) {
    say(fmt::format("{} failed ({}): the ranks run on, this output is dropped", name,
                    std::strerror(sink.error())));
  }
}

void Output::read_some(Stream& stream) {
  const ssize_t count = ::read(stream.pipe.get(), read_buffer_.data(), read_buffer_.size());
  if (count < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (count <= 0) {
    finish(stream);
    return;
  }
  const std::string_view data(read_buffer_.data(), static_cast<size_t>(count));
  if (stream.owed) *stream.owed -= std::min(*stream.owed, data.size());
  write_log(stream, data);
  stream.splitter.feed(data, [&](std::string_view line) { emit(stream, line); });
}

void Output::emit(Stream& stream, std::string_view line) {
  if (stream.is_stderr) {
    auto& tail = tails_[static_cast<size_t>(stream.rank)];
    tail.push_back(tail_line(line));
    if (tail.size() > kTailLines) tail.pop_front();
  }
  if (stream.sink == nullptr) return;
  stream.sink->append(stream.prefix);
  stream.sink->append(line);
  const bool alone = options_.nproc == 1 && !options_.prefix;
  if (line.back() != '\n' && !alone) stream.sink->append("\n");
}

void Output::write_log(Stream& stream, std::string_view data) {
  if (!stream.log) return;
  const int error = write_all(stream.log.get(), data);
  if (error == 0) return;
  say(fmt::format("the log of rank {} failed ({}): the ranks run on, its log ends here",
                  stream.rank, std::strerror(error)));
  stream.log.reset();
}

void Output::finish(Stream& stream) {
  stream.splitter.flush([&](std::string_view line) { emit(stream, line); });
  stream.pipe.reset();
  stream.log.reset();
}

bool Output::closed() const {
  for (const auto& stream : streams_) {
    if (stream->pipe) return false;
  }
  return true;
}

bool Output::drained() const {
  for (const auto& stream : streams_) {
    if (stream->pipe && stream->owed.value_or(1) > 0) return false;
  }
  return true;
}

void Output::close_ranks() {
  for (const auto& stream : streams_) {
    if (stream->pipe) finish(*stream);
  }
  streams_.clear();
  polled_.clear();
}

bool Output::pending() const {
  for (const auto& sink : sinks_) {
    if (sink->pending()) return true;
  }
  return false;
}

std::vector<std::string> Output::stderr_tail(int rank) const {
  const auto& tail = tails_[static_cast<size_t>(rank)];
  return {tail.begin(), tail.end()};
}

}  // namespace tessera::launch
