#include "text.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <tessera/error.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

#include "mix.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& action, const std::string& path, int error_number) {
  throw IoError(fmt::format("{} {} failed: {}", action, path, std::strerror(error_number)),
                error_number);
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

// Reads to the end rather than to the size that stat reported: the file may be growing.
void append_file(const std::string& path, std::string& bytes) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) refuse("opening the text", path, errno);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) refuse("reading the size of the text", path, errno);
  size_t used = bytes.size();
  bytes.resize(used + static_cast<size_t>(status.st_size) + 1);
  while (true) {
    if (used == bytes.size()) bytes.resize(used + (size_t{1} << 16));
    const ssize_t got = ::read(file.get(), bytes.data() + used, bytes.size() - used);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) refuse("reading the text", path, errno);
    if (got == 0) break;
    used += static_cast<size_t>(got);
  }
  bytes.resize(used);
}

std::vector<std::string> files_below(const std::string& folder) {
  std::vector<std::string> paths;
  try {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
      if (entry.is_regular_file()) paths.push_back(entry.path().string());
    }
  } catch (const fs::filesystem_error& error) {
    throw IoError(fmt::format("listing the text folder {} failed: {}", folder, error.what()),
                  error.code().value());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::string digest_of(const std::string& bytes) {
  uint64_t digest = mix64(bytes.size());
  size_t offset = 0;
  for (; offset + sizeof(uint64_t) <= bytes.size(); offset += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + offset, sizeof(word));
    digest = mix64(digest ^ word);
  }
  uint64_t tail = 0;
  std::memcpy(&tail, bytes.data() + offset, bytes.size() - offset);
  return fmt::format("{:016x}", mix64(digest ^ tail));
}

}  // namespace

Text load_text(const std::string& path) {
  std::error_code code;
  const fs::file_status status = fs::status(path, code);
  if (status.type() == fs::file_type::not_found) {
    throw UsageError(fmt::format("--data {}: no such file or folder", path));
  }
  if (code) throw IoError(fmt::format("--data {}: {}", path, code.message()), code.value());

  Text text;
  text.source = path;
  std::vector<std::string> files;
  if (fs::is_directory(status)) {
    files = files_below(path);
    if (files.empty()) throw UsageError(fmt::format("--data {}: the folder holds no file", path));
  } else if (fs::is_regular_file(status)) {
    files.push_back(path);
  } else {
    throw UsageError(fmt::format("--data {}: neither a regular file nor a folder", path));
  }
  for (const std::string& file : files) append_file(file, text.bytes);
  if (text.bytes.empty()) {
    throw UsageError(
        fmt::format("--data {}: the text is empty; give a file or folder with text", path));
  }
  text.files = static_cast<int64_t>(files.size());
  text.digest = digest_of(text.bytes);
  return text;
}

}  // namespace tessera::train
