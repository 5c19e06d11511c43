#include "io/recording_file_system.h"

#include <numeric>

namespace tessera::io {
namespace {

uint64_t total_bytes(const std::vector<FileAccess>& accesses) {
  return std::accumulate(
      accesses.begin(), accesses.end(), uint64_t{0},
      [](uint64_t total, const FileAccess& access) { return total + access.size; });
}

}  // namespace

class RecordingFileSystem::RecordingFile final : public ForwardingFile {
 public:
  RecordingFile(std::unique_ptr<File> base, RecordingFileSystem& owner)
      : ForwardingFile(std::move(base)), owner_(owner) {}
  void read_at(uint64_t offset, void* data, size_t size) override {
    base_->read_at(offset, data, size);
    owner_.add(owner_.reads_, {path(), offset, size});
  }
  void write_at(uint64_t offset, const void* data, size_t size) override {
    base_->write_at(offset, data, size);
    owner_.add(owner_.writes_, {path(), offset, size});
  }

 private:
  RecordingFileSystem& owner_;
};

std::unique_ptr<File> RecordingFileSystem::open(const std::string& path, OpenMode mode) {
  return std::make_unique<RecordingFile>(base_.open(path, mode), *this);
}

void RecordingFileSystem::add(std::vector<FileAccess>& list, FileAccess access) {
  const std::lock_guard lock(mutex_);
  list.push_back(std::move(access));
}

std::vector<FileAccess> RecordingFileSystem::reads() const {
  const std::lock_guard lock(mutex_);
  return reads_;
}

std::vector<FileAccess> RecordingFileSystem::writes() const {
  const std::lock_guard lock(mutex_);
  return writes_;
}

uint64_t RecordingFileSystem::bytes_read() const {
  const std::lock_guard lock(mutex_);
  return total_bytes(reads_);
}

uint64_t RecordingFileSystem::bytes_written() const {
  const std::lock_guard lock(mutex_);
  return total_bytes(writes_);
}

void RecordingFileSystem::clear() {
  const std::lock_guard lock(mutex_);
  reads_.clear();
  writes_.clear();
}

}  // namespace tessera::io
