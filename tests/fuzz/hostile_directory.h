// A checkpoint directory in memory whose every byte an enemy chose. It watches its reader: names
// stay inside, reads stay in bounds, and no more is read than a fixed amount.
#pragma once

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fuzz/require.h"
#include "io/file_system.h"
#include "tessera/error.h"

namespace tessera::fuzz {

class HostileDirectory final : public io::FileSystem {
 public:
  static constexpr const char* kPath = "run/step-00000001";

  // Where `sparse` is set, a file is as large as claimed, with zeros behind its content.
  struct Content {
    std::string bytes;
    uint64_t size = 0;
  };
  std::map<std::string, Content> content;

  std::unique_ptr<io::File> open(const std::string& path, io::OpenMode mode) override;
  bool exists(const std::string& path) override {
    return is_directory(path) || content.contains(name_in(path));
  }
  bool is_directory(const std::string& path) override { return path == kPath || path == "run"; }
  std::vector<io::DirectoryEntry> list(const std::string& path) override {
    if (path == "run") return {{"step-00000001", true, false, 0}};
    require(path == kPath, "only the directory and its parent are listed");
    std::vector<io::DirectoryEntry> entries;
    for (const auto& [name, file] : content) entries.push_back({name, false, false, file.size});
    return entries;
  }
  void create_directories(const std::string&) override { refuse(); }
  bool create_directory(const std::string&) override { return refuse(); }
  void rename(const std::string&, const std::string&) override { refuse(); }
  void replace(const std::string&, const std::string&) override { refuse(); }
  void remove_file(const std::string&) override { refuse(); }
  void remove_tree(const std::string&) override { refuse(); }
  void sync_directory(const std::string&) override { refuse(); }
  uint64_t free_bytes(const std::string&) override { return 0; }

 private:
  class HostileFile;
  // A disk of which only so much can be read: a claim of an exabyte must not make a test long.
  static constexpr uint64_t kReadable = uint64_t{8} << 20;

  static bool refuse() {
    require(false, "a reader changes nothing");
    return false;
  }
  static std::string name_in(const std::string& path) {
    const std::string inside = std::string(kPath) + "/";
    require(path.starts_with(inside), "paths stay in the directory");
    const std::string name = path.substr(inside.size());
    require(!name.empty() && name[0] != '.' && name.find('/') == std::string::npos,
            "names are plain file names");
    return name;
  }

  uint64_t read_ = 0;
};

class HostileDirectory::HostileFile final : public io::File {
 public:
  HostileFile(HostileDirectory& owner, std::string path, const Content& content)
      : owner_(owner), path_(std::move(path)), content_(content) {}
  const std::string& path() const override { return path_; }
  uint64_t size() override { return content_.size; }
  void read_at(uint64_t offset, void* data, size_t size) override {
    if (offset > content_.size || size > content_.size - offset)
      throw IoError(path_ + ": ends before that");
    owner_.read_ += size;
    if (owner_.read_ > kReadable) throw IoError(path_ + ": enough", EIO);
    std::memset(data, 0, size);
    if (offset < content_.bytes.size())
      std::memcpy(data, content_.bytes.data() + offset,
                  std::min<size_t>(size, content_.bytes.size() - offset));
  }
  void write_at(uint64_t, const void*, size_t) override { refuse(); }
  void allocate(uint64_t) override { refuse(); }
  void truncate(uint64_t) override { refuse(); }
  void sync() override {}
  void close() override {}

 private:
  HostileDirectory& owner_;
  const std::string path_;
  const Content& content_;
};

inline std::unique_ptr<io::File> HostileDirectory::open(const std::string& path,
                                                        io::OpenMode mode) {
  require(mode == io::OpenMode::kRead, "a reader only reads");
  const auto found = content.find(name_in(path));
  if (found == content.end()) throw IoError(path + ": missing", ENOENT);
  return std::make_unique<HostileFile>(*this, path, found->second);
}

}  // namespace tessera::fuzz
