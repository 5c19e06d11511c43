#include "launch/line_splitter.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

namespace tessera::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class LineSplitterTest : public ::testing::Test {
 protected:
  void feed(LineSplitter& splitter, std::string_view data) {
    splitter.feed(data, [this](std::string_view line) { lines_.emplace_back(line); });
  }
  void flush(LineSplitter& splitter) {
    splitter.flush([this](std::string_view line) { lines_.emplace_back(line); });
  }
  std::vector<std::string> lines_;
};

TEST_F(LineSplitterTest, HandsOutWholeLinesWithTheirEnds) {
  LineSplitter splitter;
  feed(splitter, "one\ntwo\n\nthr");
  EXPECT_THAT(lines_, ElementsAre("one\n", "two\n", "\n"));
  feed(splitter, "ee\n");
  EXPECT_THAT(lines_, ElementsAre("one\n", "two\n", "\n", "three\n"));
  flush(splitter);
  EXPECT_EQ(lines_.size(), 4u);
}

TEST_F(LineSplitterTest, FlushHandsOutTheUnfinishedLineOnce) {
  LineSplitter splitter;
  feed(splitter, "end");
  EXPECT_THAT(lines_, IsEmpty());
  flush(splitter);
  flush(splitter);
  EXPECT_THAT(lines_, ElementsAre("end"));
}

TEST_F(LineSplitterTest, AnyCutGivesTheSameLines) {
  const std::string text("a\n\nbc\0d\r\n\xff\xfe\nlast", 16);
  std::vector<std::string> want;
  for (size_t piece = 1; piece <= text.size(); ++piece) {
    lines_.clear();
    LineSplitter splitter;
    for (size_t at = 0; at < text.size(); at += piece) feed(splitter, text.substr(at, piece));
    flush(splitter);
    if (want.empty()) want = lines_;
    EXPECT_EQ(lines_, want) << "pieces of " << piece;
  }
  EXPECT_EQ(want.size(), 5u);
  std::string joined;
  for (const std::string& line : want) joined += line;
  EXPECT_EQ(joined, text);
}

TEST_F(LineSplitterTest, ALineOverTheLimitComesInParts) {
  LineSplitter splitter(4);
  feed(splitter, "abcdefghij\nxyz\nwxyz\n");
  flush(splitter);
  EXPECT_THAT(lines_, ElementsAre("abcd", "efgh", "ij\n", "xyz\n", "wxyz", "\n"));
}

TEST_F(LineSplitterTest, TheLimitHoldsOverManyPieces) {
  LineSplitter splitter(4);
  for (const char* piece : {"a", "bc", "def", "\n"}) feed(splitter, piece);
  EXPECT_THAT(lines_, ElementsAre("abcd", "ef\n"));
}

}  // namespace
}  // namespace tessera::launch
