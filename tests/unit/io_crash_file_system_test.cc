#include "io/crash_file_system.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <functional>
#include <map>

#include "io/fault_file_system.h"
#include "tessera/error.h"

namespace tessera::io {
namespace {

int errno_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const IoError& error) {
    return error.error_number();
  }
  return -1;
}

std::string content_of(FileSystem& files, const std::string& path) {
  return files.exists(path) ? read_file(files, path, 1 << 20) : "(missing)";
}

TEST(CrashFiles, BehavesLikeADiskUntilItCrashes) {
  CrashFileSystem disk;
  disk.create_directories("/a/b");
  EXPECT_TRUE(disk.create_directory("/a/c"));
  EXPECT_FALSE(disk.create_directory("/a/c"));
  write_file(disk, "/a/b/file", "12345");
  EXPECT_EQ(content_of(disk, "/a/./b//file"), "12345");
  EXPECT_EQ(disk.list("/a").size(), 2U);
  EXPECT_EQ(disk.list("/a/b").at(0).size, 5U);
  EXPECT_TRUE(disk.is_directory("/a/b"));
  EXPECT_FALSE(disk.is_directory("/a/b/file"));
  EXPECT_EQ(errno_of([&] { disk.open("/a/b/file", OpenMode::kCreate); }), EEXIST);
  EXPECT_EQ(errno_of([&] { disk.open("/a/none", OpenMode::kRead); }), ENOENT);
  EXPECT_FALSE(disk.exists("/a/none"));
  EXPECT_EQ(errno_of([&] { disk.open("/a", OpenMode::kRead); }), EISDIR);
  EXPECT_EQ(errno_of([&] { disk.open("/a/b/file/x", OpenMode::kCreate); }), ENOTDIR);
  EXPECT_EQ(errno_of([&] { disk.list("/a/b/file"); }), ENOTDIR);
  EXPECT_EQ(errno_of([&] { disk.create_directories("/a/b/file/x"); }), ENOTDIR);
  EXPECT_EQ(errno_of([&] { disk.remove_file("/a/b"); }), EISDIR);
  EXPECT_EQ(errno_of([&] { disk.exists("/a/.."); }), EINVAL);
  disk.remove_tree("/a");
  disk.remove_tree("/a");
  EXPECT_FALSE(disk.exists("/a"));
}

TEST(CrashFiles, RenamesLikeADisk) {
  CrashFileSystem disk;
  write_file(disk, "/from", "new");
  write_file(disk, "/to", "old");
  disk.create_directories("/full/inside");
  disk.create_directories("/empty");
  EXPECT_EQ(errno_of([&] { disk.rename("/from", "/to"); }), EEXIST);
  EXPECT_EQ(errno_of([&] { disk.rename("/none", "/x"); }), ENOENT);
  EXPECT_EQ(errno_of([&] { disk.replace("/empty", "/full"); }), ENOTEMPTY);
  EXPECT_EQ(errno_of([&] { disk.replace("/from", "/full"); }), EISDIR);
  EXPECT_EQ(errno_of([&] { disk.replace("/full", "/from"); }), ENOTDIR);
  disk.replace("/from", "/to");
  EXPECT_EQ(content_of(disk, "/to"), "new");
  EXPECT_FALSE(disk.exists("/from"));
  disk.replace("/full", "/empty");
  EXPECT_TRUE(disk.exists("/empty/inside"));
}

TEST(CrashFiles, ReadsAndWritesAtOffsets) {
  CrashFileSystem disk;
  const auto file = disk.open("/file", OpenMode::kCreate);
  file->write_at(2, "cd", 2);
  EXPECT_EQ(content_of(disk, "/file"), std::string("\0\0cd", 4));
  file->allocate(6);
  EXPECT_EQ(file->size(), 6U);
  file->truncate(3);
  char back[4];
  EXPECT_EQ(errno_of([&] { file->read_at(0, back, 4); }), 0) << "an end of file has no errno";
  const auto reader = disk.open("/file", OpenMode::kRead);
  EXPECT_EQ(errno_of([&] { reader->write_at(0, "x", 1); }), EBADF);
  file->close();
  EXPECT_EQ(errno_of([&] { file->write_at(0, "x", 1); }), EBADF);
}

TEST(CrashFiles, OnlyWhatWasSyncedSurvives) {
  CrashFileSystem disk;
  write_file(disk, "/unnamed", "content synced, name not");
  disk.create_directories("/d");
  disk.sync_directory("/");
  write_file(disk, "/d/lost", "x");
  const auto file = disk.open("/d/kept", OpenMode::kCreate);
  file->write_at(0, "old", 3);
  file->sync();
  disk.sync_directory("/d");
  file->write_at(0, "new", 3);
  disk.remove_file("/d/lost");
  disk.crash(Survivors::kNothing);
  EXPECT_EQ(content_of(disk, "/unnamed"), "content synced, name not");
  EXPECT_EQ(content_of(disk, "/d/kept"), "old");
  EXPECT_EQ(content_of(disk, "/d/lost"), "x") << "its removal was not synced";
  EXPECT_EQ(errno_of([&] { file->size(); }), EIO);
  write_file(disk, "/d/after", "");
  disk.crash(Survivors::kNothing);
  EXPECT_EQ(content_of(disk, "/d/after"), "(missing)");
}

TEST(CrashFiles, NamesMaySurviveWithoutContent) {
  CrashFileSystem disk;
  const auto file = disk.open("/file", OpenMode::kCreate);
  file->write_at(0, "synced", 6);
  file->sync();
  file->write_at(6, " not", 4);
  disk.rename("/file", "/renamed");
  disk.crash(Survivors::kNames);
  EXPECT_EQ(content_of(disk, "/renamed"), std::string("synced\0\0\0\0", 10));
}

TEST(CrashFiles, EverythingMaySurvive) {
  CrashFileSystem disk;
  disk.open("/file", OpenMode::kCreate)->write_at(0, "abc", 3);
  disk.crash(Survivors::kEverything);
  EXPECT_EQ(content_of(disk, "/file"), "abc");
  disk.crash(Survivors::kNothing);
  EXPECT_EQ(content_of(disk, "/file"), "abc") << "durable since the first crash";
}

TEST(CrashFiles, AnUnsyncedMoveCanShowBothNamesOrNone) {
  CrashFileSystem disk;
  disk.create_directories("/a");
  disk.create_directories("/b");
  write_file(disk, "/a/file", "x");
  disk.sync_directory("/");
  disk.sync_directory("/a");
  disk.rename("/a/file", "/b/file");
  disk.sync_directory("/b");
  disk.crash(Survivors::kNothing);
  EXPECT_EQ(content_of(disk, "/a/file"), "x");
  EXPECT_EQ(content_of(disk, "/b/file"), "x");
  disk.rename("/b/file", "/a/other");
  disk.sync_directory("/b");
  disk.crash(Survivors::kNothing);
  EXPECT_EQ(content_of(disk, "/b/file"), "(missing)");
  EXPECT_EQ(content_of(disk, "/a/other"), "(missing)");
}

TEST(CrashFiles, SomeOfWhatWasNotSyncedSurvivesByChance) {
  std::map<std::string, int> seen;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    CrashFileSystem disk;
    disk.create_directories("/d");
    write_file(disk, "/d/moved", "x");
    write_file(disk, "/d/gone", "x");
    write_file(disk, "/d/old", "x");
    disk.sync_directory("/");
    disk.sync_directory("/d");
    disk.rename("/d/moved", "/d/there");
    disk.remove_file("/d/gone");
    disk.open("/d/new", OpenMode::kCreate)->write_at(0, "abc", 3);
    disk.replace("/d/new", "/d/old");
    disk.crash(Survivors::kSome, seed);
    // A rename happened or did not, and what was replaced is there where what replaced it is not.
    EXPECT_NE(disk.exists("/d/moved"), disk.exists("/d/there"));
    EXPECT_TRUE(disk.exists("/d/old"));
    ++seen[disk.exists("/d/moved") ? "kept" : "moved"];
    ++seen[disk.exists("/d/gone") ? "back" : "gone"];
    ++seen["content " + content_of(disk, "/d/old").substr(0, 3)];
  }
  EXPECT_GE(seen.size(), 6U);
  for (const auto& [what, count] : seen) EXPECT_GT(count, 10) << what;
}

// The publishing protocol of a checkpoint in miniature, stopped at every operation and crashed in
// every way: the published name is absent or complete.
void publish(FileSystem& files) {
  files.create_directories("/root/tmp");
  write_file(files, "/root/tmp/data", "payload");
  files.sync_directory("/root/tmp");
  files.rename("/root/tmp", "/root/step");
  files.sync_directory("/root");
}

TEST(CrashFiles, PublishingIsAllOrNothingAtEveryOperation) {
  CrashFileSystem count_disk;
  FaultFileSystem counter(count_disk);
  publish(counter);
  int published = 0;
  for (int64_t stop = 1; stop <= counter.operations() + 1; ++stop) {
    for (const Survivors survivors :
         {Survivors::kNothing, Survivors::kNames, Survivors::kSome, Survivors::kEverything}) {
      CrashFileSystem disk;
      disk.create_directories("/root");
      disk.sync_directory("/");
      FaultFileSystem files(disk);
      files.fail_from(stop, EIO);
      const bool finished = errno_of([&] { publish(files); }) == -1;
      disk.crash(survivors, static_cast<uint64_t>(stop));
      if (disk.exists("/root/step")) {
        ++published;
        EXPECT_EQ(content_of(disk, "/root/step/data"), "payload") << "stopped at " << stop;
      }
      EXPECT_TRUE(!finished || disk.exists("/root/step"));
    }
  }
  EXPECT_GE(published, 3);
}

}  // namespace
}  // namespace tessera::io
