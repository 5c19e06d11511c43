#include "metrics.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <tessera/error.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>
#include <utility>

namespace tessera::train {
namespace {

[[noreturn]] void refuse(const std::string& action, const std::string& path) {
  const int error_number = errno;
  throw IoError(
      fmt::format("{} the metrics file {} failed: {}", action, path, std::strerror(error_number)),
      error_number);
}

void write_all(int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) refuse("writing", path);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

// A device is written to as it is. Opening a named pipe would wait for a reader, perhaps for ever;
// those under /dev are the shell's and have one.
bool is_regular_file(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    if (errno != ENOENT) refuse("looking at", path);
    return false;
  }
  if (S_ISDIR(status.st_mode)) {
    throw UsageError(fmt::format("--metrics {}: a directory; give the name of a file", path));
  }
  if (S_ISFIFO(status.st_mode) && !path.starts_with("/dev/")) {
    throw UsageError(fmt::format("--metrics {}: a named pipe; give the name of a file", path));
  }
  return S_ISREG(status.st_mode);
}

std::string read_all(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  if (!file || (file.peek() != std::ifstream::traits_type::eof() && !(content << file.rdbuf()))) {
    errno = EIO;
    refuse("reading", path);
  }
  return content.str();
}

// The step of one line, or nothing where the line is not of a metrics file.
std::optional<int64_t> step_of(std::string_view line) {
  const auto value = nlohmann::json::parse(line, nullptr, false);
  if (!value.is_object() || !value.contains("step") || !value["step"].is_number_integer()) {
    return std::nullopt;
  }
  return value["step"].get<int64_t>();
}

// The lines up to `last_step`. Only complete lines count: the last one may be torn.
std::string kept_lines(const std::string& content, int64_t last_step, const std::string& path) {
  std::string kept;
  std::string_view rest = content;
  for (int64_t number = 1; !rest.empty(); ++number) {
    const size_t newline = rest.find('\n');
    if (newline == std::string_view::npos) {
      if (rest.front() == '{') break;
      throw UsageError(
          fmt::format("--metrics {}: the file exists and is not a metrics file", path));
    }
    const std::string_view line = rest.substr(0, newline + 1);
    rest.remove_prefix(newline + 1);
    const std::optional<int64_t> step = step_of(line);
    if (!step) {
      throw UsageError(
          fmt::format("--metrics {}: line {} is not a line of a metrics file; name "
                      "another file or remove this one",
                      path, number));
    }
    if (*step <= last_step) kept.append(line);
  }
  return kept;
}

// Through a new file and a rename, so that a crash leaves the old lines or the kept ones.
void replace_content(const std::string& path, const std::string& content) {
  const std::string temporary = path + ".tmp";
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) refuse("creating", temporary);
  try {
    write_all(fd, content, temporary);
  } catch (...) {
    ::close(fd);
    ::unlink(temporary.c_str());
    throw;
  }
  if (::close(fd) != 0) refuse("closing", temporary);
  if (std::rename(temporary.c_str(), path.c_str()) != 0) refuse("replacing", path);
}

}  // namespace

std::string to_json_line(const StepMetrics& metrics) {
  nlohmann::ordered_json line;
  line["step"] = metrics.step;
  line["loss"] = metrics.loss;
  line["tokens_per_second"] = metrics.tokens_per_second;
  line["seconds"] = metrics.seconds;
  line["grad_norm"] = nullptr;
  if (metrics.grad_norm) line["grad_norm"] = *metrics.grad_norm;
  line["epoch"] = metrics.epoch;
  line["position"] = metrics.position;
  return line.dump() + "\n";
}

MetricsFile::MetricsFile(std::string path, int64_t resumed_step) : path_(std::move(path)) {
  if (is_regular_file(path_)) {
    const std::string content = read_all(path_);
    const std::string kept = kept_lines(content, resumed_step, path_);
    if (kept.size() != content.size()) replace_content(path_, kept);
  }
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd_ < 0) refuse("opening", path_);
}

MetricsFile::~MetricsFile() {
  if (fd_ >= 0) ::close(fd_);
}

void MetricsFile::append(const StepMetrics& metrics) {
  write_all(fd_, to_json_line(metrics), path_);
}

}  // namespace tessera::train
