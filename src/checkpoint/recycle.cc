#include "checkpoint/recycle.h"

#include <cerrno>

#include "checkpoint/manifest.h"
#include "tessera/error.h"

namespace tessera::checkpoint {

bool may_recycle(io::FileSystem& files, const std::string& directory) {
  for (const io::DirectoryEntry& entry : files.list(directory))
    if (entry.is_directory || entry.is_symlink || entry.links != 1) return false;
  return true;
}

bool take_recycled(io::FileSystem& files, const std::string& root, const std::string& to) {
  for (const io::DirectoryEntry& entry : files.list(root)) {
    if (!entry.is_directory || !entry.name.starts_with(kRecycled)) continue;
    try {
      files.rename(io::join_path(root, entry.name), to);
    } catch (const IoError& error) {
      if (error.error_number() == EEXIST || error.error_number() == ENOTEMPTY) return false;
      throw;
    }
    for (const char* name : {kManifestName, kHashesName}) {
      const std::string path = io::join_path(to, name);
      if (files.exists(path)) files.remove_file(path);
    }
    return true;
  }
  return false;
}

std::unique_ptr<io::File> open_recycled(io::FileSystem& files, const std::string& path,
                                        uint64_t bytes) {
  if (!files.exists(path)) return nullptr;
  auto file = files.open(path, io::OpenMode::kReadWrite);
  if (file->size() == bytes) return file;
  file->close();
  files.remove_file(path);
  return nullptr;
}

void remove_unlisted(io::FileSystem& files, const std::string& directory,
                     const std::set<std::string>& listed) {
  for (const io::DirectoryEntry& entry : files.list(directory))
    if (!listed.contains(entry.name)) files.remove_file(io::join_path(directory, entry.name));
}

}  // namespace tessera::checkpoint
