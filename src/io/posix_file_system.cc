#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "io/posix_calls.h"
#include "io/posix_file.h"
#include "tessera/error.h"

namespace tessera::io {
namespace {

class PosixFileSystem final : public FileSystem {
 public:
  explicit PosixFileSystem(PosixCalls& calls) : calls_(calls) {}

  std::unique_ptr<File> open(const std::string& path, OpenMode mode) override {
    return open_posix_file(calls_, path, mode);
  }
  bool exists(const std::string& path) override {
    return stat_of(AT_FDCWD, path, path, AT_SYMLINK_NOFOLLOW).has_value();
  }
  bool is_directory(const std::string& path) override {
    const auto info = stat_of(AT_FDCWD, path, path, 0);
    return info && S_ISDIR(info->st_mode);
  }
  void create_directories(const std::string& path) override;
  bool create_directory(const std::string& path) override;
  std::vector<DirectoryEntry> list(const std::string& path) override;
  void rename(const std::string& from, const std::string& to) override;
  void replace(const std::string& from, const std::string& to) override {
    if (calls_.rename(from.c_str(), to.c_str()) != 0) throw_rename_error(from, to, errno);
  }
  void remove_file(const std::string& path) override {
    if (calls_.unlinkat(AT_FDCWD, path.c_str(), 0) != 0) throw_io_error("remove", path, errno);
  }
  void remove_tree(const std::string& path) override {
    remove_entry(AT_FDCWD, path.c_str(), path, 0);
  }
  void sync_directory(const std::string& path) override;
  uint64_t free_bytes(const std::string& path) override;

 private:
  // Each level of remove_tree holds a descriptor.
  static constexpr int kDeepestTree = 128;

  [[noreturn]] static void throw_rename_error(const std::string& from, const std::string& to,
                                              int error_number) {
    throw_io_error(fmt::format("rename {} to", from), to, error_number);
  }
  std::optional<struct stat> stat_of(int directory, const std::string& name,
                                     const std::string& path, int flags);
  int open_directory(int parent, const char* name, const std::string& path, int extra_flags = 0);
  std::vector<std::string> names_in(int directory, const std::string& path);
  void rename_by_link(const std::string& from, const std::string& to);
  void remove_entry(int parent, const char* name, const std::string& path, int depth);

  PosixCalls& calls_;
};

// Nothing where the path does not exist.
std::optional<struct stat> PosixFileSystem::stat_of(int directory, const std::string& name,
                                                    const std::string& path, int flags) {
  struct stat info {};
  if (calls_.fstatat(directory, name.c_str(), &info, flags) == 0) return info;
  if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
  throw_io_error("look at", path, errno);
}

void PosixFileSystem::create_directories(const std::string& path) {
  if (path.empty()) throw_io_error("create directory", path, ENOENT);
  if (is_directory(path)) return;
  const size_t last = path.find_last_not_of('/');
  const size_t slash = last == std::string::npos ? last : path.find_last_of('/', last);
  if (slash != std::string::npos && slash > 0) create_directories(path.substr(0, slash));
  if (calls_.mkdir(path.c_str(), 0777) == 0) return;
  const int error_number = errno;
  if (error_number == EEXIST && is_directory(path)) return;  // a peer was faster
  throw_io_error("create directory", path, error_number);
}

bool PosixFileSystem::create_directory(const std::string& path) {
  if (calls_.mkdir(path.c_str(), 0777) == 0) return true;
  const int error_number = errno;
  if (error_number == EEXIST && is_directory(path)) return false;
  throw_io_error("create directory", path, error_number);
}

int PosixFileSystem::open_directory(int parent, const char* name, const std::string& path,
                                    int extra_flags) {
  const int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC | extra_flags;
  const int fd = retry_interrupted([&] { return calls_.openat(parent, name, flags, 0); });
  if (fd < 0) throw_io_error("open directory", path, errno);
  return fd;
}

// Reads through a descriptor of its own, so that `directory` stays usable.
std::vector<std::string> PosixFileSystem::names_in(int directory, const std::string& path) {
  ScopedFd fd(calls_, open_directory(directory, ".", path));
  DIR* stream = calls_.fdopendir(fd.get());
  if (stream == nullptr) throw_io_error("list directory", path, errno);
  fd.release();
  const auto close = [this](DIR* open_stream) { calls_.closedir(open_stream); };
  const std::unique_ptr<DIR, decltype(close)> closer(stream, close);
  std::vector<std::string> names;
  while (true) {
    errno = 0;
    const struct dirent* entry = calls_.readdir(stream);
    if (entry == nullptr && errno != 0) throw_io_error("list directory", path, errno);
    if (entry == nullptr) break;
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<DirectoryEntry> PosixFileSystem::list(const std::string& path) {
  const ScopedFd directory(calls_, open_directory(AT_FDCWD, path.c_str(), path));
  std::vector<DirectoryEntry> entries;
  for (std::string& name : names_in(directory.get(), path)) {
    const auto info = stat_of(directory.get(), name, join_path(path, name), AT_SYMLINK_NOFOLLOW);
    if (!info) continue;  // removed since
    DirectoryEntry entry;
    entry.name = std::move(name);
    entry.is_directory = S_ISDIR(info->st_mode);
    entry.is_symlink = S_ISLNK(info->st_mode);
    entry.links = info->st_nlink;
    entry.size = static_cast<uint64_t>(info->st_size);
    entries.push_back(std::move(entry));
  }
  return entries;
}

void PosixFileSystem::rename(const std::string& from, const std::string& to) {
  if (calls_.rename_noreplace(from.c_str(), to.c_str()) == 0) return;
  const int error_number = errno;
  if (error_number != ENOSYS && error_number != EINVAL) throw_rename_error(from, to, error_number);
  // The kernel or the file system (NFS, for one) lacks RENAME_NOREPLACE.
  const auto source = stat_of(AT_FDCWD, from, from, AT_SYMLINK_NOFOLLOW);
  if (!source) throw_rename_error(from, to, ENOENT);
  if (S_ISDIR(source->st_mode)) {
    // rename(2) itself refuses a directory that holds something, so only an empty directory that
    // appears between the two calls could still be replaced.
    if (exists(to)) throw_rename_error(from, to, EEXIST);
    replace(from, to);
  } else {
    rename_by_link(from, to);
  }
}

void PosixFileSystem::rename_by_link(const std::string& from, const std::string& to) {
  if (calls_.link(from.c_str(), to.c_str()) == 0) return remove_file(from);
  const int error_number = errno;
  if (error_number != EPERM && error_number != EOPNOTSUPP && error_number != ENOSYS) {
    throw_rename_error(from, to, error_number);
  }
  if (exists(to)) throw_rename_error(from, to, EEXIST);  // no hard links here
  replace(from, to);
}

void PosixFileSystem::remove_entry(int parent, const char* name, const std::string& path,
                                   int depth) {
  if (depth > kDeepestTree) throw_io_error("remove such a deep directory as", path, ENAMETOOLONG);
  const auto info = stat_of(parent, name, path, AT_SYMLINK_NOFOLLOW);
  if (!info) return;
  int flags = 0;
  if (S_ISDIR(info->st_mode)) {
    flags = AT_REMOVEDIR;
    const ScopedFd directory(calls_, open_directory(parent, name, path, O_NOFOLLOW));
    for (const std::string& child : names_in(directory.get(), path)) {
      remove_entry(directory.get(), child.c_str(), join_path(path, child), depth + 1);
    }
  }
  if (calls_.unlinkat(parent, name, flags) != 0 && errno != ENOENT) {
    throw_io_error("remove", path, errno);
  }
}

void PosixFileSystem::sync_directory(const std::string& path) {
  const ScopedFd directory(calls_, open_directory(AT_FDCWD, path.c_str(), path));
  const int result = retry_interrupted([&] { return calls_.fsync(directory.get()); });
  // EINVAL: a file system whose directories need no sync of their own.
  if (result != 0 && errno != EINVAL) throw_io_error("sync directory", path, errno);
}

uint64_t PosixFileSystem::free_bytes(const std::string& path) {
  struct statvfs info {};
  if (retry_interrupted([&] { return calls_.statvfs(path.c_str(), &info); }) != 0) {
    throw_io_error("get the free space of", path, errno);
  }
  return static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
}

}  // namespace

std::unique_ptr<FileSystem> make_posix_file_system(PosixCalls& calls) {
  return std::make_unique<PosixFileSystem>(calls);
}

FileSystem& real_file_system() {
  // Never destroyed: a background save may still use it while the process ends.
  static auto* const calls = new PosixCalls;
  static auto* const files = new PosixFileSystem(*calls);
  return *files;
}

}  // namespace tessera::io
