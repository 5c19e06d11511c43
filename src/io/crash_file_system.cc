#include "io/crash_file_system.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <utility>

#include "io/posix_file.h"
#include "tessera/error.h"

namespace tessera::io {

struct CrashFileSystem::Node {
  static constexpr size_t kPageBytes = 4096;

  bool is_directory = false;
  std::string content;
  std::string synced_content;
  std::map<std::string, NodePtr> entries;
  std::map<std::string, NodePtr> synced_entries;

  void survive(Survivors survivors, std::mt19937_64& chance, std::set<Node*>& done) {
    if (!done.insert(this).second) return;
    if (survivors == Survivors::kNothing) {
      content = synced_content;
      entries = synced_entries;
    } else if (survivors == Survivors::kNames && content != synced_content) {
      const size_t size = content.size();
      content = synced_content;
      content.resize(size, '\0');
    } else if (survivors == Survivors::kSome) {
      survive_in_part(chance);
    }
    synced_content = content;
    synced_entries = entries;
    for (const auto& [name, node] : entries) node->survive(survivors, chance, done);
  }

 private:
  void survive_in_part(std::mt19937_64& chance) {
    if (content != synced_content) {
      // Pages of the new content, the old one or zeros elsewhere; the new or the old size.
      std::string mixed = synced_content;
      mixed.resize(chance() % 2 == 0 ? content.size() : synced_content.size(), '\0');
      for (size_t page = 0; page < std::min(mixed.size(), content.size()); page += kPageBytes)
        if (chance() % 2 == 0)
          mixed.replace(page, kPageBytes,
                        content.substr(page, std::min(kPageBytes, mixed.size() - page)));
      content = std::move(mixed);
    }
    // What became of each file or directory that is known by a name, before or now.
    std::map<NodePtr, std::pair<std::string, std::string>> names;
    for (const auto& [name, node] : synced_entries) names[node].first = name;
    for (const auto& [name, node] : entries) names[node].second = name;
    std::map<std::string, NodePtr> survived;
    for (const auto& [node, name] : names)
      if (name.first == name.second) survived[name.first] = node;
    for (const auto& [name, node] : entries) {
      const auto& [before, now] = names[node];
      if (before == now) continue;
      const std::string& chosen = chance() % 2 == 0 ? before : now;
      if (!chosen.empty()) survived.emplace(chosen, node);
    }
    for (const auto& [name, node] : synced_entries) {
      const bool replaced = entries.contains(name);
      if (names[node].second.empty() && (replaced || chance() % 2 == 0))
        survived.emplace(name, node);
    }
    entries = std::move(survived);
  }
};

class CrashFileSystem::OpenFile final : public File {
 public:
  OpenFile(CrashFileSystem& disk, std::string path, NodePtr node, bool writable)
      : disk_(disk),
        path_(std::move(path)),
        node_(std::move(node)),
        writable_(writable),
        boot_(disk.boots_) {}

  const std::string& path() const override { return path_; }

  uint64_t size() override {
    const std::lock_guard lock(disk_.mutex_);
    require_usable("get the size of", false);
    return node_->content.size();
  }

  void read_at(uint64_t offset, void* data, size_t size) override {
    const std::lock_guard lock(disk_.mutex_);
    require_usable("read", false);
    const std::string& content = node_->content;
    if (size == 0) return;
    if (offset > content.size() || size > content.size() - offset) {
      throw IoError(fmt::format("cannot read {}: it ends at byte {}, wanted bytes {} to {}", path_,
                                content.size(), offset, offset + size));
    }
    std::memcpy(data, content.data() + offset, size);
  }

  void write_at(uint64_t offset, const void* data, size_t size) override {
    const std::lock_guard lock(disk_.mutex_);
    require_usable("write", true);
    if (size == 0) return;
    grow_to(offset + size);
    std::memcpy(node_->content.data() + offset, data, size);
  }

  void allocate(uint64_t size) override {
    const std::lock_guard lock(disk_.mutex_);
    require_usable("reserve space for", true);
    grow_to(size);
  }

  void truncate(uint64_t size) override {
    const std::lock_guard lock(disk_.mutex_);
    require_usable("truncate", true);
    node_->content.resize(size, '\0');
  }

  void sync() override {
    const std::lock_guard lock(disk_.mutex_);
    require_usable("sync", false);
    node_->synced_content = node_->content;
  }

  void close() override { closed_ = true; }

 private:
  void require_usable(const std::string& operation, bool writes) const {
    if (boot_ != disk_.boots_) throw_io_error(operation, path_, EIO);
    if (closed_ || (writes && !writable_)) throw_io_error(operation, path_, EBADF);
  }
  void grow_to(uint64_t size) {
    if (node_->content.size() < size) node_->content.resize(size, '\0');
  }

  CrashFileSystem& disk_;
  const std::string path_;
  const NodePtr node_;
  const bool writable_;
  const int boot_;
  bool closed_ = false;
};

namespace {

std::vector<std::string> parts_of(const std::string& path) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (begin < path.size()) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    if (part == "..") throw_io_error("look at", path, EINVAL);
    if (!part.empty() && part != ".") parts.push_back(part);
    begin = end + 1;
  }
  return parts;
}

}  // namespace

CrashFileSystem::CrashFileSystem() : root_(std::make_shared<Node>()) { root_->is_directory = true; }
CrashFileSystem::~CrashFileSystem() = default;

void CrashFileSystem::crash(Survivors survivors, uint64_t seed) {
  const std::lock_guard lock(mutex_);
  std::set<Node*> done;
  std::mt19937_64 chance(seed);
  root_->survive(survivors, chance, done);
  ++boots_;
}

CrashFileSystem::NodePtr CrashFileSystem::find(const std::string& path) const {
  NodePtr node = root_;
  for (const std::string& part : parts_of(path)) {
    const auto entry = node->entries.find(part);
    if (entry == node->entries.end()) return nullptr;
    node = entry->second;
  }
  return node;
}

CrashFileSystem::NodePtr CrashFileSystem::require_directory(const std::string& operation,
                                                            const std::string& path) const {
  NodePtr node = find(path);
  if (!node) throw_io_error(operation, path, ENOENT);
  if (!node->is_directory) throw_io_error(operation, path, ENOTDIR);
  return node;
}

CrashFileSystem::Place CrashFileSystem::place_of(const std::string& operation,
                                                 const std::string& path) const {
  const std::vector<std::string> parts = parts_of(path);
  if (parts.empty()) throw_io_error(operation, path, EBUSY);
  NodePtr directory = root_;
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    const auto entry = directory->entries.find(parts[i]);
    if (entry == directory->entries.end()) throw_io_error(operation, path, ENOENT);
    directory = entry->second;
  }
  if (!directory->is_directory) throw_io_error(operation, path, ENOTDIR);
  return {directory, parts.back()};
}

std::unique_ptr<File> CrashFileSystem::open(const std::string& path, OpenMode mode) {
  const std::lock_guard lock(mutex_);
  const bool creates = mode == OpenMode::kCreate;
  const std::string operation = creates ? "create" : "open";
  const Place place = place_of(operation, path);
  std::map<std::string, NodePtr>& entries = place.directory->entries;
  const auto entry = entries.find(place.name);
  if (creates && entry != entries.end()) throw_io_error(operation, path, EEXIST);
  if (!creates && entry == entries.end()) throw_io_error(operation, path, ENOENT);
  const NodePtr node =
      creates ? entries.emplace(place.name, std::make_shared<Node>()).first->second : entry->second;
  if (node->is_directory) throw_io_error(operation, path, EISDIR);
  return std::make_unique<OpenFile>(*this, path, node, mode != OpenMode::kRead);
}

bool CrashFileSystem::exists(const std::string& path) {
  const std::lock_guard lock(mutex_);
  return find(path) != nullptr;
}

bool CrashFileSystem::is_directory(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const NodePtr node = find(path);
  return node && node->is_directory;
}

void CrashFileSystem::create_directories(const std::string& path) {
  const std::lock_guard lock(mutex_);
  NodePtr node = root_;
  for (const std::string& part : parts_of(path)) {
    if (!node->is_directory) throw_io_error("create directory", path, ENOTDIR);
    NodePtr& child = node->entries[part];
    if (!child) {
      child = std::make_shared<Node>();
      child->is_directory = true;
    }
    node = child;
  }
  if (!node->is_directory) throw_io_error("create directory", path, EEXIST);
}

bool CrashFileSystem::create_directory(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const Place place = place_of("create directory", path);
  const auto [entry, is_new] = place.directory->entries.try_emplace(place.name, nullptr);
  if (!is_new && !entry->second->is_directory) throw_io_error("create directory", path, EEXIST);
  if (!is_new) return false;
  entry->second = std::make_shared<Node>();
  entry->second->is_directory = true;
  return true;
}

std::vector<DirectoryEntry> CrashFileSystem::list(const std::string& path) {
  const std::lock_guard lock(mutex_);
  std::vector<DirectoryEntry> entries;
  for (const auto& [name, node] : require_directory("list directory", path)->entries) {
    entries.push_back({name, node->is_directory, false, node->content.size()});
  }
  return entries;
}

void CrashFileSystem::move(const std::string& from, const std::string& to, bool may_replace) {
  const std::lock_guard lock(mutex_);
  const std::string operation = fmt::format("rename {} to", from);
  const Place source = place_of(operation, from);
  const Place target = place_of(operation, to);
  const auto moved = source.directory->entries.find(source.name);
  if (moved == source.directory->entries.end()) throw_io_error(operation, to, ENOENT);
  const NodePtr node = moved->second;
  const auto old = target.directory->entries.find(target.name);
  if (old != target.directory->entries.end()) {
    if (!may_replace) throw_io_error(operation, to, EEXIST);
    if (old->second->is_directory != node->is_directory) {
      throw_io_error(operation, to, node->is_directory ? ENOTDIR : EISDIR);
    }
    if (!old->second->entries.empty()) throw_io_error(operation, to, ENOTEMPTY);
  }
  source.directory->entries.erase(source.name);
  target.directory->entries[target.name] = node;
}

void CrashFileSystem::rename(const std::string& from, const std::string& to) {
  move(from, to, false);
}

void CrashFileSystem::replace(const std::string& from, const std::string& to) {
  move(from, to, true);
}

void CrashFileSystem::remove_file(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const Place place = place_of("remove", path);
  const auto entry = place.directory->entries.find(place.name);
  if (entry == place.directory->entries.end()) throw_io_error("remove", path, ENOENT);
  if (entry->second->is_directory) throw_io_error("remove", path, EISDIR);
  place.directory->entries.erase(entry);
}

void CrashFileSystem::remove_tree(const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (!find(path)) return;
  const Place place = place_of("remove", path);
  // Entry by entry, as a real one: a crash may find the tree half empty.
  std::vector<NodePtr> emptied = {place.directory->entries.at(place.name)};
  while (!emptied.empty()) {
    const NodePtr node = emptied.back();
    emptied.pop_back();
    for (const auto& [name, child] : node->entries) emptied.push_back(child);
    node->entries.clear();
  }
  place.directory->entries.erase(place.name);
}

void CrashFileSystem::sync_directory(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const NodePtr node = require_directory("sync directory", path);
  node->synced_entries = node->entries;
}

uint64_t CrashFileSystem::free_bytes(const std::string& path) {
  const std::lock_guard lock(mutex_);
  constexpr uint64_t kPlenty = uint64_t{1} << 40;
  require_directory("get the free space of", path);
  return kPlenty;
}

}  // namespace tessera::io
