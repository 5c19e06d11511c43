#include "io/fault_file_system.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "tessera/error.h"

namespace tessera::io {
namespace {

[[noreturn]] void throw_injected(const std::string& operation, const std::string& path,
                                 int error_number) {
  throw IoError(
      fmt::format("cannot {} {}: {} (injected)", operation, path, strerrordesc_np(error_number)),
      error_number);
}

// Bytes of the files at or under `path`; 0 where there is nothing.
uint64_t stored_bytes(FileSystem& files, const std::string& path) {
  if (!files.exists(path)) return 0;
  if (!files.is_directory(path)) return files.open(path, OpenMode::kRead)->size();
  uint64_t total = 0;
  for (const DirectoryEntry& entry : files.list(path)) {
    if (entry.is_directory) {
      total += stored_bytes(files, join_path(path, entry.name));
    } else if (!entry.is_symlink) {
      total += entry.size;
    }
  }
  return total;
}

}  // namespace

class FaultFileSystem::FaultFile final : public ForwardingFile {
 public:
  FaultFile(std::unique_ptr<File> base, FaultFileSystem& owner)
      : ForwardingFile(std::move(base)), owner_(owner) {}

  uint64_t size() override {
    owner_.enter(FileOperation::kSize, "get the size of", path());
    return base_->size();
  }

  void read_at(uint64_t offset, void* data, size_t size) override {
    owner_.enter(FileOperation::kRead, "read", path());
    base_->read_at(offset, data, size);
  }

  void write_at(uint64_t offset, const void* data, size_t size) override {
    const int error_number = owner_.begin(FileOperation::kWrite);
    size_t accepted = size;
    if (error_number != 0) {
      accepted = static_cast<size_t>(std::floor(static_cast<double>(size) * owner_.torn_share()));
    }
    const uint64_t growth = growth_to(offset + accepted);
    const uint64_t missing = std::min<uint64_t>(growth - owner_.take_space(growth), accepted);
    base_->write_at(offset, data, static_cast<size_t>(accepted - missing));
    if (error_number != 0) throw_injected("write", path(), error_number);
    if (missing > 0) throw_injected("write", path(), ENOSPC);
  }

  void allocate(uint64_t size) override {
    owner_.enter(FileOperation::kAllocate, "reserve space for", path());
    if (owner_.allocate_ignored()) return;
    const uint64_t growth = growth_to(size);
    const uint64_t granted = owner_.take_space(growth);
    if (granted < growth) {
      owner_.give_space(granted);
      throw_injected("reserve space for", path(), ENOSPC);
    }
    base_->allocate(size);
  }

  void truncate(uint64_t size) override {
    owner_.enter(FileOperation::kTruncate, "truncate", path());
    const uint64_t before = base_->size();
    base_->truncate(size);
    if (size < before) owner_.give_space(before - size);
  }

  void sync() override {
    owner_.enter(FileOperation::kSync, "sync", path());
    base_->sync();
  }

  void close() override {
    owner_.enter(FileOperation::kClose, "close", path());
    base_->close();
  }

 private:
  // Bytes by which the file must grow to end at `end`; 0 where space is not limited.
  uint64_t growth_to(uint64_t end) {
    if (!owner_.space_limited()) return 0;
    const uint64_t old_size = base_->size();
    return end > old_size ? end - old_size : 0;
  }

  FaultFileSystem& owner_;
};

void FaultFileSystem::fail(int64_t nth, int error_number) {
  const std::lock_guard lock(mutex_);
  faults_.push_back({std::nullopt, total_ + nth, false, error_number});
}

void FaultFileSystem::fail(FileOperation kind, int64_t nth, int error_number) {
  const std::lock_guard lock(mutex_);
  faults_.push_back({kind, counts_[static_cast<size_t>(kind)] + nth, false, error_number});
}

void FaultFileSystem::fail_from(int64_t nth, int error_number) {
  const std::lock_guard lock(mutex_);
  faults_.push_back({std::nullopt, total_ + nth, true, error_number});
}

void FaultFileSystem::tear_writes(double share) {
  const std::lock_guard lock(mutex_);
  torn_share_ = std::clamp(share, 0.0, 1.0);
}

void FaultFileSystem::limit_space(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  space_left_ = bytes;
}

void FaultFileSystem::ignore_allocate(bool value) {
  const std::lock_guard lock(mutex_);
  ignore_allocate_ = value;
}

void FaultFileSystem::heal() {
  const std::lock_guard lock(mutex_);
  faults_.clear();
  torn_share_ = 0;
  ignore_allocate_ = false;
  space_left_.reset();
}

int64_t FaultFileSystem::operations() const {
  const std::lock_guard lock(mutex_);
  return total_;
}

int64_t FaultFileSystem::operations(FileOperation kind) const {
  const std::lock_guard lock(mutex_);
  return counts_[static_cast<size_t>(kind)];
}

int FaultFileSystem::begin(FileOperation kind) {
  const std::lock_guard lock(mutex_);
  const int64_t number = ++total_;
  const int64_t kind_number = ++counts_[static_cast<size_t>(kind)];
  for (const Fault& fault : faults_) {
    if (fault.kind && *fault.kind != kind) continue;
    const int64_t now = fault.kind ? kind_number : number;
    if (fault.persists ? now >= fault.number : now == fault.number) return fault.error_number;
  }
  return 0;
}

void FaultFileSystem::enter(FileOperation kind, const std::string& operation,
                            const std::string& path) {
  const int error_number = begin(kind);
  if (error_number != 0) throw_injected(operation, path, error_number);
}

double FaultFileSystem::torn_share() const {
  const std::lock_guard lock(mutex_);
  return torn_share_;
}

bool FaultFileSystem::allocate_ignored() const {
  const std::lock_guard lock(mutex_);
  return ignore_allocate_;
}

bool FaultFileSystem::space_limited() const {
  const std::lock_guard lock(mutex_);
  return space_left_.has_value();
}

uint64_t FaultFileSystem::take_space(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (!space_left_) return bytes;
  const uint64_t granted = std::min(bytes, *space_left_);
  *space_left_ -= granted;
  return granted;
}

void FaultFileSystem::give_space(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (space_left_) *space_left_ += bytes;
}

template <typename Remove>
void FaultFileSystem::freeing(const std::string& path, Remove remove) {
  const uint64_t bytes = space_limited() ? stored_bytes(base_, path) : 0;
  remove();
  give_space(bytes);
}

std::unique_ptr<File> FaultFileSystem::open(const std::string& path, OpenMode mode) {
  enter(FileOperation::kOpen, mode == OpenMode::kCreate ? "create" : "open", path);
  return std::make_unique<FaultFile>(base_.open(path, mode), *this);
}

bool FaultFileSystem::exists(const std::string& path) {
  enter(FileOperation::kLook, "look at", path);
  return base_.exists(path);
}

bool FaultFileSystem::is_directory(const std::string& path) {
  enter(FileOperation::kLook, "look at", path);
  return base_.is_directory(path);
}

void FaultFileSystem::create_directories(const std::string& path) {
  enter(FileOperation::kCreateDirectory, "create directory", path);
  base_.create_directories(path);
}

bool FaultFileSystem::create_directory(const std::string& path) {
  enter(FileOperation::kCreateDirectory, "create directory", path);
  return base_.create_directory(path);
}

std::vector<DirectoryEntry> FaultFileSystem::list(const std::string& path) {
  enter(FileOperation::kLook, "list directory", path);
  return base_.list(path);
}

void FaultFileSystem::rename(const std::string& from, const std::string& to) {
  enter(FileOperation::kRename, fmt::format("rename {} to", from), to);
  base_.rename(from, to);
}

void FaultFileSystem::replace(const std::string& from, const std::string& to) {
  enter(FileOperation::kRename, fmt::format("rename {} to", from), to);
  freeing(to, [&] { base_.replace(from, to); });
}

void FaultFileSystem::remove_file(const std::string& path) {
  enter(FileOperation::kRemove, "remove", path);
  freeing(path, [&] { base_.remove_file(path); });
}

void FaultFileSystem::remove_tree(const std::string& path) {
  enter(FileOperation::kRemove, "remove", path);
  freeing(path, [&] { base_.remove_tree(path); });
}

void FaultFileSystem::sync_directory(const std::string& path) {
  enter(FileOperation::kSyncDirectory, "sync directory", path);
  base_.sync_directory(path);
}

uint64_t FaultFileSystem::free_bytes(const std::string& path) {
  enter(FileOperation::kLook, "get the free space of", path);
  const std::lock_guard lock(mutex_);
  return space_left_ ? *space_left_ : base_.free_bytes(path);
}

}  // namespace tessera::io
