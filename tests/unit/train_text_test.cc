#include "train/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <tessera/error.h>

#include <filesystem>
#include <fstream>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

class TextTest : public testing::Test {
 protected:
  TextTest() {
    std::string pattern = (fs::temp_directory_path() / "tessera-text-XXXXXX").string();
    root_ = ::mkdtemp(pattern.data());
  }
  ~TextTest() override { fs::remove_all(root_); }

  std::string write(const std::string& name, const std::string& content) {
    const fs::path path = root_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << content;
    return path.string();
  }

  fs::path root_;
};

TEST_F(TextTest, FileKeepsEveryByte) {
  std::string bytes;
  for (int i = 0; i < 1000; ++i) bytes.push_back(static_cast<char>(i));
  const Text text = load_text(write("a.bin", bytes));
  EXPECT_EQ(text.bytes, bytes);
  EXPECT_EQ(text.files, 1);
}

TEST_F(TextTest, FolderIsReadRecursivelyInSortedOrder) {
  write("b/2", "two ");
  write("b/1", "one ");
  write("a", "zero ");
  write("c", "three");
  const Text text = load_text(root_.string());
  EXPECT_EQ(text.bytes, "zero one two three");
  EXPECT_EQ(text.files, 4);
}

TEST_F(TextTest, DigestDependsOnContentAndLength) {
  const std::string first = load_text(write("1", "some text")).digest;
  EXPECT_EQ(load_text(write("2", "some text")).digest, first);
  EXPECT_NE(load_text(write("3", "some texu")).digest, first);
  EXPECT_NE(load_text(write("4", std::string("some text\0", 10))).digest, first);
  EXPECT_EQ(first.size(), 16u);
}

TEST_F(TextTest, MissingTextNamesThePath) {
  const std::string path = (root_ / "nowhere").string();
  EXPECT_THAT([&] { load_text(path); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr(path), HasSubstr("no such file"))));
}

TEST_F(TextTest, EmptyFileNamesThePath) {
  const std::string path = write("empty", "");
  EXPECT_THAT([&] { load_text(path); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr(path), HasSubstr("empty"))));
}

TEST_F(TextTest, FolderWithoutFilesNamesThePath) {
  fs::create_directories(root_ / "sub" / "deeper");
  const std::string path = (root_ / "sub").string();
  EXPECT_THAT([&] { load_text(path); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr(path), HasSubstr("no file"))));
}

TEST_F(TextTest, PipeIsRefused) {
  const std::string path = (root_ / "pipe").string();
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT([&] { load_text(path); }, ThrowsMessage<UsageError>(HasSubstr(path)));
}

TEST_F(TextTest, WhatTheSystemRefusesIsAnIoError) {
  const fs::path path = root_ / "loop";
  fs::create_symlink(path, path);
  EXPECT_THAT([&] { load_text(path.string()); }, ThrowsMessage<IoError>(HasSubstr(path.string())));
  // A link to nowhere inside a folder is no file; a readable one is.
  write("sub/file", "text");
  fs::create_symlink(root_ / "nowhere", root_ / "sub" / "dangling");
  EXPECT_EQ(load_text((root_ / "sub").string()).bytes, "text");
}

}  // namespace
}  // namespace tessera::train
