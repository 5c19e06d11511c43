// The machine's own files, without faults.
#include "io/file_system.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <functional>

#include "io_temp_directory.h"
#include "tessera/error.h"

namespace tessera::io {
namespace {

using ::testing::HasSubstr;

class RealFiles : public ::testing::Test {
 protected:
  // The errno of the IoError that `action` throws, its text in `message_`; -1 for none.
  int errno_of(const std::function<void()>& action) {
    try {
      action();
    } catch (const IoError& error) {
      message_ = error.what();
      return error.error_number();
    }
    return -1;
  }

  TempDirectory directory_;
  FileSystem& files_ = real_file_system();
  std::string message_;
};

TEST_F(RealFiles, WritesAndReadsAtOffsets) {
  const std::string path = directory_ / "data";
  {
    const auto file = files_.open(path, OpenMode::kCreate);
    file->write_at(4, "5678", 4);
    file->write_at(0, "1234", 4);
    file->sync();
    EXPECT_EQ(file->size(), 8U);
    file->close();
    file->close();
  }
  EXPECT_EQ(slurp(path), "12345678");
  const auto file = files_.open(path, OpenMode::kRead);
  std::string part(3, ' ');
  file->read_at(2, part.data(), part.size());
  EXPECT_EQ(part, "345");
  EXPECT_EQ(file->path(), path);
}

TEST_F(RealFiles, ReadPastTheEndSaysWhereTheFileEnds) {
  spill(directory_ / "short", "abc");
  const auto file = files_.open(directory_ / "short", OpenMode::kRead);
  char buffer[8];
  errno_of([&] { file->read_at(1, buffer, 5); });
  EXPECT_THAT(message_, HasSubstr("ends at byte 3, wanted bytes 1 to 6"));
  file->read_at(100, buffer, 0);
}

TEST_F(RealFiles, OpenModes) {
  const std::string path = directory_ / "file";
  EXPECT_EQ(errno_of([&] { files_.open(path, OpenMode::kRead); }), ENOENT);
  EXPECT_THAT(message_, HasSubstr("cannot open " + path + ": No such file or directory"));
  EXPECT_EQ(errno_of([&] { files_.open(path, OpenMode::kReadWrite); }), ENOENT);
  files_.open(path, OpenMode::kCreate)->write_at(0, "x", 1);
  EXPECT_EQ(errno_of([&] { files_.open(path, OpenMode::kCreate); }), EEXIST);
  EXPECT_THAT(message_, HasSubstr("cannot create"));
  files_.open(path, OpenMode::kReadWrite)->write_at(1, "y", 1);
  EXPECT_EQ(slurp(path), "xy");
  const auto reader = files_.open(path, OpenMode::kRead);
  EXPECT_EQ(errno_of([&] { reader->write_at(0, "z", 1); }), EBADF);
}

TEST_F(RealFiles, DescriptorsAreClosedOnExec) {
  const auto file = files_.open(directory_ / "file", OpenMode::kCreate);
  int found = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry.path(), gone) != file->path()) continue;
    ++found;
    EXPECT_NE(::fcntl(std::stoi(entry.path().filename()), F_GETFD) & FD_CLOEXEC, 0);
  }
  EXPECT_EQ(found, 1);
}

TEST_F(RealFiles, RefusesWhatIsNoRegularFile) {
  EXPECT_EQ(errno_of([&] { files_.open(directory_.path(), OpenMode::kRead); }), EISDIR);
  ASSERT_EQ(::mkfifo((directory_ / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(errno_of([&] { files_.open(directory_ / "pipe", OpenMode::kRead); }), EINVAL);
  EXPECT_THAT(message_, HasSubstr("not a regular file"));
}

TEST_F(RealFiles, AllocateReservesAndTruncateCuts) {
  const auto file = files_.open(directory_ / "file", OpenMode::kCreate);
  file->allocate(0);
  EXPECT_EQ(file->size(), 0U);
  file->allocate(100'000);
  EXPECT_EQ(file->size(), 100'000U);
  file->allocate(10);
  EXPECT_EQ(file->size(), 100'000U) << "allocating never shrinks";
  file->truncate(7);
  EXPECT_EQ(file->size(), 7U);
}

TEST_F(RealFiles, OffsetsThatNoFileHasAreErrors) {
  const auto file = files_.open(directory_ / "file", OpenMode::kCreate);
  char byte = 0;
  const uint64_t far = uint64_t{1} << 63;
  EXPECT_EQ(errno_of([&] { file->read_at(far, &byte, 1); }), EOVERFLOW);
  EXPECT_EQ(errno_of([&] { file->write_at(far - 1, &byte, 1); }), EOVERFLOW);
  EXPECT_EQ(errno_of([&] { file->allocate(~uint64_t{0}); }), EOVERFLOW);
  EXPECT_EQ(errno_of([&] { file->truncate(~uint64_t{0}); }), EOVERFLOW);
}

TEST_F(RealFiles, ReachesBeyondFourGigabytes) {
  const auto file = files_.open(directory_ / "sparse", OpenMode::kCreate);
  const uint64_t far = (uint64_t{5} << 30) + 3;
  file->write_at(far, "end", 3);
  EXPECT_EQ(file->size(), far + 3);
  char back[4] = {};
  file->read_at(far - 1, back, 4);
  EXPECT_EQ(std::string(back, 4), std::string("\0end", 4));
}

TEST_F(RealFiles, AClosedFileSaysSo) {
  const auto file = files_.open(directory_ / "file", OpenMode::kCreate);
  file->close();
  errno_of([&] { file->write_at(0, "x", 1); });
  EXPECT_THAT(message_, HasSubstr("it is closed"));
}

TEST_F(RealFiles, ExistsAndIsDirectory) {
  spill(directory_ / "file", "");
  ASSERT_EQ(::symlink("nowhere", (directory_ / "dangling").c_str()), 0);
  ASSERT_EQ(::symlink(directory_.path().c_str(), (directory_ / "link").c_str()), 0);
  EXPECT_TRUE(files_.exists(directory_ / "file"));
  EXPECT_TRUE(files_.exists(directory_ / "dangling")) << "the name is taken";
  EXPECT_FALSE(files_.exists(directory_ / "none"));
  EXPECT_FALSE(files_.exists(directory_ / "file/below"));
  EXPECT_TRUE(files_.is_directory(directory_.path()));
  EXPECT_TRUE(files_.is_directory(directory_ / "link"));
  EXPECT_FALSE(files_.is_directory(directory_ / "file"));
  EXPECT_FALSE(files_.is_directory(directory_ / "dangling"));
}

TEST_F(RealFiles, CreatesDirectories) {
  files_.create_directories(directory_ / "a/b//c/");
  EXPECT_TRUE(std::filesystem::is_directory(directory_ / "a/b/c"));
  files_.create_directories(directory_ / "a/b/c");
  EXPECT_TRUE(files_.create_directory(directory_ / "claim"));
  EXPECT_FALSE(files_.create_directory(directory_ / "claim"));
  spill(directory_ / "file", "");
  EXPECT_EQ(errno_of([&] { files_.create_directory(directory_ / "file"); }), EEXIST);
  EXPECT_EQ(errno_of([&] { files_.create_directories(directory_ / "file"); }), EEXIST);
  EXPECT_EQ(errno_of([&] { files_.create_directories(directory_ / "file/below"); }), EEXIST);
  EXPECT_EQ(errno_of([&] { files_.create_directories(""); }), ENOENT);
  EXPECT_EQ(errno_of([&] { files_.create_directory(directory_ / "no/parent"); }), ENOENT);
}

TEST_F(RealFiles, CreatesRelativeDirectories) {
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(directory_.path());
  files_.create_directories("x/y");
  files_.create_directories(".");
  std::filesystem::current_path(before);
  EXPECT_TRUE(std::filesystem::is_directory(directory_ / "x/y"));
}

TEST_F(RealFiles, ListsSortedWithoutFollowingLinks) {
  spill(directory_ / "b", "12345");
  spill(directory_ / ".hidden", "");
  files_.create_directory(directory_ / "a");
  ASSERT_EQ(::symlink("a", (directory_ / "c").c_str()), 0);
  const std::vector<DirectoryEntry> entries = files_.list(directory_.path());
  ASSERT_EQ(entries.size(), 4U);
  EXPECT_EQ(entries[0].name, ".hidden");
  EXPECT_EQ(entries[1].name, "a");
  EXPECT_TRUE(entries[1].is_directory);
  EXPECT_EQ(entries[2].name, "b");
  EXPECT_EQ(entries[2].size, 5U);
  EXPECT_FALSE(entries[2].is_directory);
  EXPECT_EQ(entries[3].name, "c");
  EXPECT_TRUE(entries[3].is_symlink);
  EXPECT_FALSE(entries[3].is_directory);
  EXPECT_EQ(errno_of([&] { files_.list(directory_ / "none"); }), ENOENT);
  EXPECT_EQ(errno_of([&] { files_.list(directory_ / "b"); }), ENOTDIR);
}

TEST_F(RealFiles, RenameNeverReplaces) {
  spill(directory_ / "from", "new");
  spill(directory_ / "to", "old");
  EXPECT_EQ(errno_of([&] { files_.rename(directory_ / "from", directory_ / "to"); }), EEXIST);
  EXPECT_THAT(message_, HasSubstr("cannot rename " + directory_ / "from"));
  EXPECT_EQ(slurp(directory_ / "to"), "old");
  files_.rename(directory_ / "from", directory_ / "moved");
  EXPECT_EQ(slurp(directory_ / "moved"), "new");
  files_.create_directory(directory_ / "d1");
  files_.create_directory(directory_ / "d2");
  EXPECT_EQ(errno_of([&] { files_.rename(directory_ / "d1", directory_ / "d2"); }), EEXIST);
  EXPECT_EQ(errno_of([&] { files_.rename(directory_ / "none", directory_ / "x"); }), ENOENT);
}

TEST_F(RealFiles, ReplaceReplaces) {
  spill(directory_ / "from", "new");
  spill(directory_ / "to", "old");
  files_.replace(directory_ / "from", directory_ / "to");
  EXPECT_EQ(slurp(directory_ / "to"), "new");
  EXPECT_FALSE(files_.exists(directory_ / "from"));
  EXPECT_EQ(errno_of([&] { files_.replace(directory_ / "from", directory_ / "to"); }), ENOENT);
}

TEST_F(RealFiles, RemovesFilesAndTreesButNeverThroughLinks) {
  files_.create_directories(directory_ / "precious");
  spill(directory_ / "precious/kept", "kept");
  files_.create_directories(directory_ / "tree/deep/er");
  spill(directory_ / "tree/deep/er/file", "");
  ASSERT_EQ(::symlink((directory_ / "precious").c_str(), (directory_ / "tree/link").c_str()), 0);
  ASSERT_EQ(::symlink((directory_ / "precious").c_str(), (directory_ / "top").c_str()), 0);
  files_.remove_tree(directory_ / "tree");
  files_.remove_tree(directory_ / "top");
  EXPECT_FALSE(files_.exists(directory_ / "tree"));
  EXPECT_FALSE(files_.exists(directory_ / "top"));
  EXPECT_EQ(slurp(directory_ / "precious/kept"), "kept");
  files_.remove_tree(directory_ / "tree");
  files_.remove_file(directory_ / "precious/kept");
  EXPECT_EQ(errno_of([&] { files_.remove_file(directory_ / "precious/kept"); }), ENOENT);
  EXPECT_EQ(errno_of([&] { files_.remove_file(directory_ / "precious"); }), EISDIR);
}

TEST_F(RealFiles, RefusesToDescendWithoutBound) {
  std::string path = directory_ / "deep";
  for (int i = 0; i < 140; ++i) path += "/d";
  files_.create_directories(path);
  EXPECT_EQ(errno_of([&] { files_.remove_tree(directory_ / "deep"); }), ENAMETOOLONG);
}

TEST_F(RealFiles, SyncsDirectoriesAndKnowsTheFreeSpace) {
  files_.sync_directory(directory_.path());
  EXPECT_EQ(errno_of([&] { files_.sync_directory(directory_ / "none"); }), ENOENT);
  EXPECT_EQ(files_.free_bytes(directory_.path()) / 1'000'000,
            std::filesystem::space(directory_.path()).available / 1'000'000);
  EXPECT_EQ(errno_of([&] { files_.free_bytes(directory_ / "none"); }), ENOENT);
}

TEST_F(RealFiles, WholeFileHelpers) {
  write_file(files_, directory_ / "file", "content");
  EXPECT_EQ(read_file(files_, directory_ / "file", 7), "content");
  errno_of([&] { read_file(files_, directory_ / "file", 6); });
  EXPECT_THAT(message_, HasSubstr("it has 7 bytes, at most 6 are accepted"));
  EXPECT_EQ(errno_of([&] { write_file(files_, directory_ / "file", "x"); }), EEXIST);
  write_file(files_, directory_ / "empty", "");
  EXPECT_EQ(read_file(files_, directory_ / "empty", 0), "");
}

TEST(JoinPath, PutsOneSlashBetween) {
  EXPECT_EQ(join_path("a", "b"), "a/b");
  EXPECT_EQ(join_path("a/", "b"), "a/b");
  EXPECT_EQ(join_path("/", "b"), "/b");
  EXPECT_EQ(join_path("", "b"), "b");
}

}  // namespace
}  // namespace tessera::io
