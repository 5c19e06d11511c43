#include "train/progress.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>

namespace tessera::train {
namespace {

TEST(FormatDuration, PicksTheUnit) {
  EXPECT_EQ(format_duration(0), "0s");
  EXPECT_EQ(format_duration(59.4), "59s");
  EXPECT_EQ(format_duration(59.6), "1m00s");
  EXPECT_EQ(format_duration(185), "3m05s");
  EXPECT_EQ(format_duration(7620), "2h07m");
  EXPECT_EQ(format_duration(std::nan("")), "?");
}

TEST(FormatProgress, ShowsEverything) {
  ProgressState state{20, 60, 3.45678, 1234.4, 0.3, ""};
  EXPECT_EQ(format_progress(state), "step 20/60  loss 3.4568  1234 tokens/s  ETA 12s");
  state.checkpoint = "saved step-00000020";
  EXPECT_EQ(format_progress(state),
            "step 20/60  loss 3.4568  1234 tokens/s  ETA 12s  saved step-00000020");
}

TEST(ElideMiddle, KeepsBothEnds) {
  EXPECT_EQ(elide_middle("0123456789", 10), "0123456789");
  EXPECT_EQ(elide_middle("0123456789", 9), "012...789");
  EXPECT_EQ(elide_middle("0123456789", 8), "012...89");
  EXPECT_EQ(elide_middle("0123456789", 3), "...");
  EXPECT_EQ(elide_middle("0123456789", 2), "..");
}

// Everything that was written to the pipe whose write end is `fds[1]`; closes both ends.
std::string drain(int read_end) {
  std::string all;
  char buffer[4096];
  for (ssize_t got; (got = ::read(read_end, buffer, sizeof(buffer))) > 0;) {
    all.append(buffer, static_cast<size_t>(got));
  }
  ::close(read_end);
  return all;
}

TEST(Progress, PlainLinesEveryFewSteps) {
  int fds[2];
  ASSERT_EQ(::pipe(fds), 0);
  Progress progress(fds[1], 2);
  for (int64_t step = 1; step <= 5; ++step) progress.update({step, 5, 1.0, 10, 1, ""});
  progress.message("hello");
  progress.finish();
  ::close(fds[1]);
  EXPECT_EQ(drain(fds[0]),
            "step 1/5  loss 1.0000  10 tokens/s  ETA 4s\n"
            "step 2/5  loss 1.0000  10 tokens/s  ETA 3s\n"
            "step 4/5  loss 1.0000  10 tokens/s  ETA 1s\n"
            "step 5/5  loss 1.0000  10 tokens/s  ETA 0s\n"
            "hello\n");
}

TEST(Progress, TerminalLineIsOverprintedAndFitsTheWidth) {
  int controller = -1;
  int terminal = -1;
  struct winsize size {};
  size.ws_col = 20;
  size.ws_row = 24;
  ASSERT_EQ(::openpty(&controller, &terminal, nullptr, nullptr, &size), 0);
  ASSERT_EQ(::setenv("TERM", "xterm", 1), 0);
  {
    Progress progress(terminal, 1);
    progress.update({1, 5, 1.0, 10, 1, ""});
    progress.update({5, 5, 0.5, 10, 1, "saved step-00000005"});
    progress.finish();
  }
  char buffer[4096];
  std::string shown;
  while (shown.find('\n') == std::string::npos) {
    const ssize_t got = ::read(controller, buffer, sizeof(buffer));
    ASSERT_GT(got, 0);
    shown.append(buffer, static_cast<size_t>(got));
  }
  ::close(terminal);
  ::close(controller);
  const std::string first = "\r\x1b[Kstep 1/5 ...  ETA 4s";
  const std::string last = "\r\x1b[Kstep 5/5 ...00000005";
  EXPECT_EQ(shown, first + last + last + "\r\n");
}

}  // namespace
}  // namespace tessera::train
