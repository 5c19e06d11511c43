// Every system call fails, is interrupted or does half of what it was asked.
#include "io/posix_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <map>
#include <set>

#include "io_temp_directory.h"
#include "tessera/error.h"

namespace tessera::io {
namespace {

using ::testing::HasSubstr;

// Fails the n-th call of a name with an errno; moves at most `most_bytes_` bytes a call.
class FaultyCalls final : public PosixCalls {
 public:
  void fail(const std::string& name, int error_number, int nth = 1) {
    faults_[name] = {error_number, counts_[name] + nth};
  }
  void move_at_most(size_t bytes) { most_bytes_ = bytes; }
  void end_of_file(bool value) { end_of_file_ = value; }
  int count(const std::string& name) const {
    const auto it = counts_.find(name);
    return it == counts_.end() ? 0 : it->second;
  }
  size_t largest_request() const { return largest_request_; }
  int open_descriptors() const { return static_cast<int>(open_.size()); }

  int openat(int directory, const char* path, int flags, mode_t mode) override {
    if (fails("openat")) return -1;
    const int fd = PosixCalls::openat(directory, path, flags, mode);
    if (fd >= 0) open_.insert(fd);
    return fd;
  }
  int close(int fd) override {
    open_.erase(fd);
    const int result = PosixCalls::close(fd);  // a failing close still closes
    return fails("close") ? -1 : result;
  }
  ssize_t pread(int fd, void* data, size_t size, off_t offset) override {
    largest_request_ = std::max(largest_request_, size);
    if (fails("pread")) return -1;
    return end_of_file_ ? 0 : PosixCalls::pread(fd, data, std::min(size, most_bytes_), offset);
  }
  ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) override {
    largest_request_ = std::max(largest_request_, size);
    if (fails("pwrite")) return -1;
    return end_of_file_ ? 0 : PosixCalls::pwrite(fd, data, std::min(size, most_bytes_), offset);
  }
  int start_writeback(int fd, off_t offset, off_t size) override {
    return fails("start_writeback") ? -1 : PosixCalls::start_writeback(fd, offset, size);
  }
  int fallocate(int fd, off_t size) override {
    return fails("fallocate") ? -1 : PosixCalls::fallocate(fd, size);
  }
  int ftruncate(int fd, off_t size) override {
    return fails("ftruncate") ? -1 : PosixCalls::ftruncate(fd, size);
  }
  int fdatasync(int fd) override { return fails("fdatasync") ? -1 : PosixCalls::fdatasync(fd); }
  int fsync(int fd) override { return fails("fsync") ? -1 : PosixCalls::fsync(fd); }
  int fstat(int fd, struct stat* out) override {
    return fails("fstat") ? -1 : PosixCalls::fstat(fd, out);
  }
  int fstatat(int directory, const char* path, struct stat* out, int flags) override {
    return fails("fstatat") ? -1 : PosixCalls::fstatat(directory, path, out, flags);
  }
  int mkdir(const char* path, mode_t mode) override {
    return fails("mkdir") ? -1 : PosixCalls::mkdir(path, mode);
  }
  int rename(const char* from, const char* to) override {
    return fails("rename") ? -1 : PosixCalls::rename(from, to);
  }
  int rename_noreplace(const char* from, const char* to) override {
    return fails("rename_noreplace") ? -1 : PosixCalls::rename_noreplace(from, to);
  }
  int link(const char* from, const char* to) override {
    return fails("link") ? -1 : PosixCalls::link(from, to);
  }
  int unlinkat(int directory, const char* path, int flags) override {
    return fails("unlinkat") ? -1 : PosixCalls::unlinkat(directory, path, flags);
  }
  int statvfs(const char* path, struct statvfs* out) override {
    return fails("statvfs") ? -1 : PosixCalls::statvfs(path, out);
  }
  DIR* fdopendir(int fd) override {
    return fails("fdopendir") ? nullptr : PosixCalls::fdopendir(fd);
  }
  struct dirent* readdir(DIR* stream) override {
    return fails("readdir") ? nullptr : PosixCalls::readdir(stream);
  }
  int closedir(DIR* stream) override {
    open_.erase(::dirfd(stream));
    return PosixCalls::closedir(stream);
  }

 private:
  struct Fault {
    int error_number = 0;
    int number = 0;
  };

  bool fails(const std::string& name) {
    const int number = ++counts_[name];
    const auto it = faults_.find(name);
    if (it == faults_.end() || it->second.number != number) return false;
    errno = it->second.error_number;
    return true;
  }

  std::map<std::string, Fault> faults_;
  std::map<std::string, int> counts_;
  std::set<int> open_;
  size_t most_bytes_ = SIZE_MAX;
  size_t largest_request_ = 0;
  bool end_of_file_ = false;
};

class PosixFaults : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(calls_.open_descriptors(), 0) << "descriptors leaked"; }

  int errno_of(const std::function<void()>& action) {
    try {
      action();
    } catch (const IoError& error) {
      message_ = error.what();
      return error.error_number();
    }
    return -1;
  }
  std::unique_ptr<File> create(const std::string& name) {
    return files_->open(directory_ / name, OpenMode::kCreate);
  }

  TempDirectory directory_;
  FaultyCalls calls_;
  std::unique_ptr<FileSystem> files_ = make_posix_file_system(calls_);
  std::string message_;
};

TEST_F(PosixFaults, ShortTransfersAreContinued) {
  std::string content(1000, ' ');
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>('a' + i % 26);
  calls_.move_at_most(7);
  const auto file = create("file");
  file->write_at(0, content.data(), content.size());
  EXPECT_EQ(slurp(directory_ / "file"), content);
  std::string back(content.size(), ' ');
  file->read_at(0, back.data(), back.size());
  EXPECT_EQ(back, content);
  EXPECT_EQ(calls_.count("pwrite"), 143);
  EXPECT_EQ(calls_.count("pread"), 143);
}

TEST_F(PosixFaults, InterruptedCallsAreRepeated) {
  for (const char* name : {"openat", "pwrite", "pread", "fallocate", "ftruncate", "fdatasync"}) {
    calls_.fail(name, EINTR);
  }
  const auto file = create("file");
  file->allocate(4);
  file->truncate(3);
  file->write_at(0, "abc", 3);
  file->sync();
  char back[3];
  file->read_at(0, back, 3);
  EXPECT_EQ(std::string(back, 3), "abc");
  EXPECT_EQ(calls_.count("pwrite"), 2);
  EXPECT_EQ(calls_.count("fdatasync"), 2);
  calls_.fail("fsync", EINTR);
  files_->sync_directory(directory_.path());
  EXPECT_EQ(calls_.count("fsync"), 2);
  calls_.fail("close", EINTR);
  file->close();  // the descriptor is gone on Linux: not repeated, no error
  EXPECT_EQ(calls_.count("close"), 2) << "one for the directory, one for the file";
}

TEST_F(PosixFaults, AHintThatFailsIsNoError) {
  const auto file = create("file");
  file->write_at(0, "abc", 3);
  for (const int error_number : {ENOSYS, EINVAL, EIO}) {
    calls_.fail("start_writeback", error_number);
    EXPECT_NO_THROW(file->start_writeback(0, 3));
  }
  EXPECT_EQ(calls_.count("start_writeback"), 3);
  EXPECT_NO_THROW(file->sync());
}

TEST_F(PosixFaults, EveryFileCallReportsItsErrno) {
  const auto file = create("file");
  char byte = 'x';
  const std::map<std::string, std::function<void()>> actions = {
      {"fstat", [&] { file->size(); }},
      {"pread", [&] { file->read_at(0, &byte, 1); }},
      {"pwrite", [&] { file->write_at(0, &byte, 1); }},
      {"fallocate", [&] { file->allocate(1); }},
      {"ftruncate", [&] { file->truncate(1); }},
      {"fdatasync", [&] { file->sync(); }},
      {"close", [&] { file->close(); }},
  };
  for (const auto& [name, action] : actions) {
    if (name == "close") continue;
    for (const int error_number : {EIO, ENOSPC, EDQUOT}) {
      calls_.fail(name, error_number);
      EXPECT_EQ(errno_of(action), error_number) << name;
      EXPECT_THAT(message_, HasSubstr(directory_ / "file")) << name;
    }
  }
  calls_.fail("close", EIO);
  EXPECT_EQ(errno_of(actions.at("close")), EIO) << "NFS reports lost writes here";
}

TEST_F(PosixFaults, AFullDiskSaysWhatToDo) {
  const auto file = create("file");
  calls_.fail("pwrite", ENOSPC);
  EXPECT_EQ(errno_of([&] { file->write_at(0, "x", 1); }), ENOSPC);
  EXPECT_THAT(message_, HasSubstr("No space left on device; free some space"));
}

TEST_F(PosixFaults, AFullDiskInTheMiddleOfAWriteIsAnError) {
  calls_.move_at_most(10);
  const auto file = create("file");
  calls_.fail("pwrite", ENOSPC, 3);
  EXPECT_EQ(errno_of([&] { file->write_at(0, std::string(100, 'x').data(), 100); }), ENOSPC);
  EXPECT_EQ(slurp(directory_ / "file").size(), 20U);
}

TEST_F(PosixFaults, AWriteThatMovesNothingDoesNotSpin) {
  const auto file = create("file");
  calls_.end_of_file(true);
  EXPECT_EQ(errno_of([&] { file->write_at(0, "x", 1); }), 0);
  EXPECT_THAT(message_, HasSubstr("accepts no byte"));
}

TEST_F(PosixFaults, NoCallAsksForTwoGigabytes) {
  const auto file = create("file");
  calls_.fail("pwrite", EIO);
  const char byte = 0;  // the failing call looks at no byte
  EXPECT_EQ(errno_of([&] { file->write_at(0, &byte, size_t{5} << 30); }), EIO);
  EXPECT_LE(calls_.largest_request(), size_t{1} << 30);
}

TEST_F(PosixFaults, WithoutFallocateTheFileStillGetsItsSize) {
  for (const int error_number : {EOPNOTSUPP, ENOSYS}) {
    const auto file = create("file" + std::to_string(error_number));
    calls_.fail("fallocate", error_number);
    file->allocate(100);
    EXPECT_EQ(file->size(), 100U);
    calls_.fail("fallocate", error_number);
    file->allocate(50);
    EXPECT_EQ(file->size(), 100U);
  }
}

TEST_F(PosixFaults, OpenReportsAndLeaksNothing) {
  spill(directory_ / "file", "");
  for (const int error_number : {EACCES, EMFILE, EROFS}) {
    calls_.fail("openat", error_number);
    EXPECT_EQ(errno_of([&] { files_->open(directory_ / "file", OpenMode::kRead); }), error_number);
  }
  calls_.fail("openat", EMFILE);
  errno_of([&] { files_->open(directory_ / "file", OpenMode::kRead); });
  EXPECT_THAT(message_, HasSubstr("ulimit -n"));
  calls_.fail("fstat", EIO);
  EXPECT_EQ(errno_of([&] { files_->open(directory_ / "file", OpenMode::kRead); }), EIO);
}

TEST_F(PosixFaults, EveryDirectoryCallReportsItsErrno) {
  files_->create_directories(directory_ / "d/e");
  const std::string d = directory_ / "d";
  const auto expect_error = [&](const std::string& name, int nth, std::function<void()> action) {
    calls_.fail(name, EIO, nth);
    EXPECT_EQ(errno_of(action), EIO) << name;
    EXPECT_THAT(message_, HasSubstr(d)) << name;
  };
  expect_error("fstatat", 1, [&] { files_->exists(d); });
  expect_error("fstatat", 1, [&] { files_->is_directory(d); });
  expect_error("mkdir", 1, [&] { files_->create_directory(d + "/new"); });
  expect_error("mkdir", 2, [&] { files_->create_directories(d + "/n/m"); });
  expect_error("openat", 1, [&] { files_->list(d); });
  expect_error("openat", 2, [&] { files_->list(d); });
  expect_error("fdopendir", 1, [&] { files_->list(d); });
  expect_error("readdir", 2, [&] { files_->list(d); });
  expect_error("fstatat", 1, [&] { files_->list(d); });
  expect_error("rename_noreplace", 1, [&] { files_->rename(d, d + "2"); });
  expect_error("rename", 1, [&] { files_->replace(d, d + "2"); });
  expect_error("unlinkat", 1, [&] { files_->remove_file(d); });
  expect_error("unlinkat", 1, [&] { files_->remove_tree(d); });
  expect_error("openat", 3, [&] { files_->remove_tree(d); });
  expect_error("fsync", 1, [&] { files_->sync_directory(d); });
  expect_error("statvfs", 1, [&] { files_->free_bytes(d); });
  EXPECT_TRUE(std::filesystem::is_directory(d + "/e"));
}

TEST_F(PosixFaults, ADirectoryWithoutSyncIsNoError) {
  calls_.fail("fsync", EINVAL);
  files_->sync_directory(directory_.path());
}

TEST_F(PosixFaults, APeerThatCreatesTheSameDirectoryIsNoError) {
  calls_.fail("fstatat", ENOENT);  // it was not there a moment ago
  files_->create_directories(directory_.path());
  EXPECT_GE(calls_.count("mkdir"), 1);
}

TEST_F(PosixFaults, EntriesThatVanishWhileListingAreLeftOut) {
  spill(directory_ / "a", "");
  spill(directory_ / "b", "");
  calls_.fail("fstatat", ENOENT);
  const std::vector<DirectoryEntry> entries = files_->list(directory_.path());
  ASSERT_EQ(entries.size(), 1U);
  EXPECT_EQ(entries[0].name, "b");
}

TEST_F(PosixFaults, FilesThatAPeerRemovesFirstAreNoError) {
  files_->create_directories(directory_ / "d");
  spill(directory_ / "d/file", "");
  calls_.fail("unlinkat", ENOENT);
  EXPECT_EQ(errno_of([&] { files_->remove_tree(directory_ / "d"); }), ENOTEMPTY)
      << "the file is still there in truth";
  files_->remove_tree(directory_ / "d");
  EXPECT_FALSE(files_->exists(directory_ / "d"));
}

class RenameWithoutNoreplace : public PosixFaults, public ::testing::WithParamInterface<int> {
 protected:
  void rename(const std::string& from, const std::string& to) {
    calls_.fail("rename_noreplace", GetParam());
    files_->rename(directory_ / from, directory_ / to);
  }
};

TEST_P(RenameWithoutNoreplace, MovesFilesByLink) {
  spill(directory_ / "from", "new");
  rename("from", "to");
  EXPECT_EQ(slurp(directory_ / "to"), "new");
  EXPECT_FALSE(files_->exists(directory_ / "from"));
  EXPECT_EQ(calls_.count("link"), 1);
  EXPECT_EQ(calls_.count("rename"), 0);
}

TEST_P(RenameWithoutNoreplace, StillNeverReplacesAFile) {
  spill(directory_ / "from", "new");
  spill(directory_ / "to", "old");
  EXPECT_EQ(errno_of([&] { rename("from", "to"); }), EEXIST);
  EXPECT_EQ(slurp(directory_ / "to"), "old");
  calls_.fail("link", EPERM);  // a file system without hard links
  EXPECT_EQ(errno_of([&] { rename("from", "to"); }), EEXIST);
  EXPECT_EQ(slurp(directory_ / "to"), "old");
  calls_.fail("link", EPERM);
  rename("from", "other");
  EXPECT_EQ(slurp(directory_ / "other"), "new");
}

TEST_P(RenameWithoutNoreplace, MovesDirectoriesButNeverReplacesOne) {
  files_->create_directories(directory_ / "from/inside");
  files_->create_directories(directory_ / "to/kept");
  EXPECT_EQ(errno_of([&] { rename("from", "to"); }), EEXIST);
  rename("from", "free");
  EXPECT_TRUE(files_->is_directory(directory_ / "free/inside"));
  EXPECT_TRUE(files_->is_directory(directory_ / "to/kept"));
  EXPECT_EQ(errno_of([&] { rename("none", "x"); }), ENOENT);
}

INSTANTIATE_TEST_SUITE_P(Errnos, RenameWithoutNoreplace, ::testing::Values(ENOSYS, EINVAL));

}  // namespace
}  // namespace tessera::io
