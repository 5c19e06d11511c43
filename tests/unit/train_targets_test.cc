#include "train/targets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tessera/error.h>

#include <filesystem>
#include <fstream>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

class TargetsTest : public testing::Test {
 protected:
  TargetsTest() {
    std::string pattern = (fs::temp_directory_path() / "tessera-targets-XXXXXX").string();
    root_ = ::mkdtemp(pattern.data());
  }
  ~TargetsTest() override { fs::remove_all(root_); }

  std::string path(const std::string& name) const { return (root_ / name).string(); }
  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }

  fs::path root_;
};

void expect_dir_refused(const std::string& path, const std::string& reason) {
  EXPECT_THAT([&] { require_checkpoint_dir(path); },
              ThrowsMessage<UsageError>(
                  AllOf(HasSubstr("--checkpoint-dir " + path + ": "), HasSubstr(reason))));
}

void expect_final_refused(const std::string& path, const std::string& data,
                          const std::string& reason) {
  EXPECT_THAT([&] { require_final_target(path, data); },
              ThrowsMessage<UsageError>(
                  AllOf(HasSubstr("--save-final " + path + ": "), HasSubstr(reason))));
}

TEST_F(TargetsTest, CheckpointDirIsMadeAndLeftEmpty) {
  require_checkpoint_dir(path("a/b"));
  require_checkpoint_dir(path("a/b/"));
  EXPECT_TRUE(fs::is_directory(path("a/b")));
  EXPECT_TRUE(fs::is_empty(path("a/b")));
}

TEST_F(TargetsTest, UnusableCheckpointDirIsRefused) {
  expect_dir_refused(write("file", "x"), "not a directory");
  expect_dir_refused(path("file/run"), "cannot be made");
  fs::create_symlink(path("nowhere"), path("link"));
  expect_dir_refused(path("link"), "leads nowhere");
  EXPECT_FALSE(fs::exists(path("nowhere")));
  expect_dir_refused("/proc/run", "cannot be made");
  expect_dir_refused("/proc/self", "no file can be written");
}

TEST_F(TargetsTest, CheckpointInPlaceOfItsRunIsRefused) {
  fs::create_directory(path("step-00000003"));
  write("step-00000003/manifest.json", "{}");
  expect_dir_refused(path("step-00000003"), "this is a checkpoint; give the directory of its run");
  require_checkpoint_dir(root_.string());
}

TEST_F(TargetsTest, FinalFileMayBeNewEmptyOrParameters) {
  const std::string data = write("text", "some text");
  require_final_target(path("new"), data);
  EXPECT_FALSE(fs::exists(path("new")));
  require_final_target(write("empty", ""), data);
  require_final_target(write("old", std::string("\2\0\0\0\0\0\0\0{}", 10)), data);
}

TEST_F(TargetsTest, UnusableFinalFileIsRefused) {
  const std::string data = write("text", "some text");
  expect_final_refused(path("no/final"), data, "there is no directory " + path("no"));
  expect_final_refused(root_.string(), data, "a directory");
  expect_final_refused(path("new/"), data, "a directory");
  expect_final_refused("/dev/full", data, "not a regular file");
  expect_final_refused(data, data, "the text of --data");
  fs::create_symlink(data, path("link"));
  expect_final_refused(path("link"), data, "the text of --data");
  expect_final_refused(write("notes", "a long list of other things"), data, "holds no parameters");
  expect_final_refused(write("short", "x"), data, "holds no parameters");
  expect_final_refused("/proc/final", data, "no file can be written in /proc");
}

}  // namespace
}  // namespace tessera::train
