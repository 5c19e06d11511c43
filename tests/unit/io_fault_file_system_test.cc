// The two file systems that watch and disturb others.
#include "io/fault_file_system.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <functional>

#include "io/recording_file_system.h"
#include "io_temp_directory.h"
#include "tessera/error.h"

namespace tessera::io {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class FaultFiles : public ::testing::Test {
 protected:
  int errno_of(const std::function<void()>& action) {
    try {
      action();
    } catch (const IoError& error) {
      message_ = error.what();
      return error.error_number();
    }
    return -1;
  }
  // One of each operation but removal.
  void use_everything(const std::string& root) {
    files_.create_directories(root);
    files_.create_directory(root + "/d");
    const auto file = files_.open(root + "/file", OpenMode::kCreate);
    file->allocate(4);
    file->write_at(0, "abcd", 4);
    char back[4];
    file->read_at(0, back, 4);
    file->truncate(3);
    file->size();
    file->sync();
    file->close();
    files_.exists(root);
    files_.is_directory(root);
    files_.list(root);
    files_.free_bytes(root);
    files_.rename(root + "/file", root + "/moved");
    files_.replace(root + "/moved", root + "/again");
    files_.sync_directory(root);
    files_.remove_file(root + "/again");
    files_.remove_tree(root);
  }

  TempDirectory directory_;
  FaultFileSystem files_{real_file_system()};
  std::string message_;
};

TEST_F(FaultFiles, WithoutFaultsNothingChanges) {
  use_everything(directory_ / "root");
  EXPECT_EQ(files_.operations(), 19);
  EXPECT_EQ(files_.operations(FileOperation::kWrite), 1);
  EXPECT_EQ(files_.operations(FileOperation::kLook), 4);
  EXPECT_EQ(files_.operations(FileOperation::kRename), 2);
}

TEST_F(FaultFiles, EachOperationInTurnCanFail) {
  use_everything(directory_ / "count");
  const int64_t total = files_.operations();
  for (int64_t nth = 1; nth <= total; ++nth) {
    files_.heal();
    files_.fail(nth, EIO);
    EXPECT_EQ(errno_of([&] { use_everything(directory_ / ("n" + std::to_string(nth))); }), EIO);
    EXPECT_THAT(message_, HasSubstr("(injected)"));
  }
  files_.heal();
  use_everything(directory_ / "healed");
}

TEST_F(FaultFiles, FailsTheNthOfAKind) {
  const auto file = files_.open(directory_ / "file", OpenMode::kCreate);
  file->write_at(0, "1", 1);
  files_.fail(FileOperation::kWrite, 2, ENOSPC);
  file->write_at(1, "2", 1);
  file->sync();
  EXPECT_EQ(errno_of([&] { file->write_at(2, "3", 1); }), ENOSPC);
  file->write_at(2, "4", 1);
  EXPECT_EQ(slurp(directory_ / "file"), "124");
}

TEST_F(FaultFiles, ALostDiskStaysLost) {
  files_.fail_from(2, EIO);
  const auto file = files_.open(directory_ / "file", OpenMode::kCreate);
  EXPECT_EQ(errno_of([&] { file->sync(); }), EIO);
  EXPECT_EQ(errno_of([&] { file->close(); }), EIO);
  EXPECT_EQ(errno_of([&] { files_.exists(directory_ / "file"); }), EIO);
}

TEST_F(FaultFiles, AFailingWriteCanTear) {
  const auto file = files_.open(directory_ / "file", OpenMode::kCreate);
  files_.tear_writes(0.5);
  files_.fail(FileOperation::kWrite, 1, EIO);
  EXPECT_EQ(errno_of([&] { file->write_at(0, "12345678", 8); }), EIO);
  EXPECT_EQ(slurp(directory_ / "file"), "1234");
}

TEST_F(FaultFiles, TheDiskFillsUp) {
  const auto file = files_.open(directory_ / "file", OpenMode::kCreate);
  files_.limit_space(10);
  file->write_at(0, "1234567", 7);
  file->write_at(0, "abcdefg", 7);  // overwriting needs no room
  EXPECT_EQ(files_.free_bytes(directory_.path()), 3U);
  EXPECT_EQ(errno_of([&] { file->write_at(7, "12345", 5); }), ENOSPC);
  EXPECT_EQ(slurp(directory_ / "file"), "abcdefg123");
  EXPECT_EQ(errno_of([&] { file->allocate(11); }), ENOSPC);
  file->truncate(4);
  EXPECT_EQ(files_.free_bytes(directory_.path()), 6U);
}

TEST_F(FaultFiles, RemovalMakesRoom) {
  files_.limit_space(10);
  files_.create_directories(directory_ / "tree/sub");
  write_file(files_, directory_ / "tree/sub/a", "12345");
  write_file(files_, directory_ / "b", "12345");
  EXPECT_EQ(errno_of([&] { write_file(files_, directory_ / "c", "1"); }), ENOSPC);
  files_.remove_tree(directory_ / "tree");
  EXPECT_EQ(files_.free_bytes(directory_.path()), 5U);
  files_.replace(directory_ / "c", directory_ / "b");
  EXPECT_EQ(files_.free_bytes(directory_.path()), 10U);
}

TEST_F(FaultFiles, AReservationTakesItsRoomAtOnceUnlessIgnored) {
  files_.limit_space(10);
  const auto file = files_.open(directory_ / "file", OpenMode::kCreate);
  EXPECT_EQ(errno_of([&] { file->allocate(11); }), ENOSPC);
  EXPECT_EQ(files_.free_bytes(directory_.path()), 10U);
  file->allocate(8);
  file->write_at(0, "12345678", 8);
  EXPECT_EQ(files_.free_bytes(directory_.path()), 2U);
  files_.ignore_allocate(true);
  file->allocate(1000);
  EXPECT_EQ(file->size(), 8U);
}

TEST(RecordingFiles, RecordsEveryReadAndWrite) {
  const TempDirectory directory;
  RecordingFileSystem files(real_file_system());
  const std::string path = directory / "file";
  const auto file = files.open(path, OpenMode::kCreate);
  file->write_at(0, "abcdef", 6);
  file->write_at(6, "gh", 2);
  char back[4];
  file->read_at(2, back, 4);
  EXPECT_THROW(file->read_at(7, back, 4), IoError);
  EXPECT_THAT(files.writes(), ElementsAre(FileAccess{path, 0, 6}, FileAccess{path, 6, 2}));
  EXPECT_THAT(files.reads(), ElementsAre(FileAccess{path, 2, 4}));
  EXPECT_EQ(files.bytes_written(), 8U);
  EXPECT_EQ(files.bytes_read(), 4U);
  files.clear();
  EXPECT_TRUE(files.reads().empty());
  EXPECT_EQ(files.bytes_written(), 0U);
}

TEST(RecordingFiles, WrapsAFaultyOne) {
  const TempDirectory directory;
  FaultFileSystem faulty(real_file_system());
  RecordingFileSystem files(faulty);
  faulty.fail(FileOperation::kRead, 1, EIO);
  write_file(files, directory / "file", "abc");
  EXPECT_THROW(read_file(files, directory / "file", 10), IoError);
  EXPECT_EQ(read_file(files, directory / "file", 10), "abc");
  EXPECT_EQ(files.reads().size(), 1U);
}

}  // namespace
}  // namespace tessera::io
