// A FileSystem that hands every call to another one: the base of those that watch or disturb.
// Threads and errors: those of the wrapped file system, which must outlive this one.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "io/file_system.h"

namespace tessera::io {

class ForwardingFile : public File {
 public:
  explicit ForwardingFile(std::unique_ptr<File> base) : base_(std::move(base)) {}
  const std::string& path() const override { return base_->path(); }
  uint64_t size() override { return base_->size(); }
  void read_at(uint64_t offset, void* data, size_t size) override {
    base_->read_at(offset, data, size);
  }
  void write_at(uint64_t offset, const void* data, size_t size) override {
    base_->write_at(offset, data, size);
  }
  void allocate(uint64_t size) override { base_->allocate(size); }
  void truncate(uint64_t size) override { base_->truncate(size); }
  void start_writeback(uint64_t offset, uint64_t size) override {
    base_->start_writeback(offset, size);
  }
  void sync() override { base_->sync(); }
  void close() override { base_->close(); }

 protected:
  std::unique_ptr<File> base_;
};

class ForwardingFileSystem : public FileSystem {
 public:
  explicit ForwardingFileSystem(FileSystem& base) : base_(base) {}
  std::unique_ptr<File> open(const std::string& path, OpenMode mode) override {
    return base_.open(path, mode);
  }
  bool exists(const std::string& path) override { return base_.exists(path); }
  bool is_directory(const std::string& path) override { return base_.is_directory(path); }
  void create_directories(const std::string& path) override { base_.create_directories(path); }
  bool create_directory(const std::string& path) override { return base_.create_directory(path); }
  std::vector<DirectoryEntry> list(const std::string& path) override { return base_.list(path); }
  void rename(const std::string& from, const std::string& to) override { base_.rename(from, to); }
  void replace(const std::string& from, const std::string& to) override { base_.replace(from, to); }
  void remove_file(const std::string& path) override { base_.remove_file(path); }
  void remove_tree(const std::string& path) override { base_.remove_tree(path); }
  void sync_directory(const std::string& path) override { base_.sync_directory(path); }
  uint64_t free_bytes(const std::string& path) override { return base_.free_bytes(path); }

 protected:
  FileSystem& base_;
};

}  // namespace tessera::io
