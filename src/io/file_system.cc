#include "io/file_system.h"

#include <fmt/format.h>

#include "tessera/error.h"

namespace tessera::io {

std::string read_file(FileSystem& files, const std::string& path, uint64_t limit_bytes) {
  const auto file = files.open(path, OpenMode::kRead);
  const uint64_t size = file->size();
  if (size > limit_bytes) {
    throw IoError(fmt::format("cannot read {}: it has {} bytes, at most {} are accepted", path,
                              size, limit_bytes));
  }
  std::string content(size, '\0');
  file->read_at(0, content.data(), content.size());
  return content;
}

void write_file(FileSystem& files, const std::string& path, const std::string& content) {
  const auto file = files.open(path, OpenMode::kCreate);
  file->write_at(0, content.data(), content.size());
  file->sync();
  file->close();
}

std::string join_path(const std::string& directory, const std::string& name) {
  if (directory.empty()) return name;
  return directory.back() == '/' ? directory + name : directory + "/" + name;
}

}  // namespace tessera::io
