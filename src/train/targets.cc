#include "targets.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <tessera/error.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

// Empty where a file can be made, written and removed in the folder; else what failed.
std::string why_not_writable(const fs::path& folder) {
  std::string name = (folder / ".write-probe-XXXXXX").string();
  const int fd = ::mkostemp(name.data(), O_CLOEXEC);
  if (fd < 0) return std::strerror(errno);
  int error_number = 0;
  ssize_t written = -1;
  do {
    written = ::write(fd, "?", 1);
  } while (written < 0 && errno == EINTR);
  if (written != 1) error_number = written < 0 ? errno : ENOSPC;
  if (::close(fd) != 0 && error_number == 0) error_number = errno;
  if (::unlink(name.c_str()) != 0 && error_number == 0) error_number = errno;
  return error_number == 0 ? std::string() : std::strerror(error_number);
}

[[noreturn]] void refuse(const char* flag, const std::string& path, const std::string& reason) {
  throw UsageError(fmt::format("{} {}: {}", flag, path, reason));
}

// Eight bytes of little-endian length, then a JSON object of that length.
bool starts_like_safetensors(const std::string& path, uint64_t file_size) {
  std::ifstream file(path, std::ios::binary);
  unsigned char head[9] = {};
  if (!file.read(reinterpret_cast<char*>(head), sizeof(head))) return false;
  uint64_t length = 0;
  for (int byte = 7; byte >= 0; --byte) length = length << 8 | head[byte];
  return length >= 2 && length <= file_size - 8 && head[8] == '{';
}

}  // namespace

void require_checkpoint_dir(const std::string& path) {
  constexpr const char* kFlag = "--checkpoint-dir";
  std::error_code code;
  const fs::file_status status = fs::status(path, code);
  if (fs::exists(status) && !fs::is_directory(status)) {
    refuse(kFlag, path, "not a directory; give a directory, or a name that is free");
  }
  if (!fs::exists(status) && fs::is_symlink(fs::symlink_status(path, code))) {
    refuse(kFlag, path, "a symbolic link that leads nowhere; remove it or make its target");
  }
  if (fs::exists(fs::path(path) / "manifest.json", code)) {
    refuse(kFlag, path, "this is a checkpoint; give the directory of its run");
  }
  fs::create_directories(path, code);
  if (code) {
    refuse(kFlag, path,
           fmt::format("the directory cannot be made ({}); give one that can be written",
                       code.message()));
  }
  if (const std::string reason = why_not_writable(path); !reason.empty()) {
    refuse(kFlag, path,
           fmt::format("no file can be written in it ({}); give another directory", reason));
  }
}

void require_final_target(const std::string& path, const std::string& data) {
  constexpr const char* kFlag = "--save-final";
  const fs::path target(path);
  std::error_code code;
  const fs::file_status status = fs::status(target, code);
  if (fs::is_directory(status) || target.filename().empty()) {
    refuse(kFlag, path, "a directory; give the name of a file");
  }
  if (fs::exists(status)) {
    if (fs::equivalent(target, data, code)) {
      refuse(kFlag, path, "this is the text of --data; give another file");
    }
    if (!fs::is_regular_file(status)) {
      refuse(kFlag, path, "not a regular file; give another name");
    }
    const uint64_t size = fs::file_size(target, code);
    if (!code && size > 0 && !starts_like_safetensors(path, size)) {
      refuse(kFlag, path,
             "the file exists and holds no parameters (safetensors); give another name or remove "
             "it");
    }
  }
  const fs::path folder = target.has_parent_path() ? target.parent_path() : fs::path(".");
  if (!fs::is_directory(folder, code)) {
    refuse(kFlag, path, fmt::format("there is no directory {}; make it first", folder.string()));
  }
  if (const std::string reason = why_not_writable(folder); !reason.empty()) {
    refuse(kFlag, path,
           fmt::format("no file can be written in {} ({}); give another directory", folder.string(),
                       reason));
  }
}

}  // namespace tessera::train
