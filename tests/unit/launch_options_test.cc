#include "launch/options.h"

#include <gmock/gmock.h>

#include "tessera/error.h"

namespace tessera::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

LaunchOptions parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "tessera-run");
  return parse_options(static_cast<int>(arguments.size()), arguments.data());
}

std::string problem_of(const std::vector<const char*>& arguments) {
  try {
    parse(arguments);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(LaunchOptionsTest, Defaults) {
  const LaunchOptions options = parse({"--nproc", "2", "prog"});
  EXPECT_EQ(options.nproc, 2);
  EXPECT_EQ(options.grace, std::chrono::seconds(30));
  EXPECT_EQ(options.log_dir, "");
  EXPECT_TRUE(options.console.shows_all());
  EXPECT_TRUE(options.prefix);
  EXPECT_EQ(options.master_addr, "127.0.0.1");
  EXPECT_EQ(options.master_port, 0);
  EXPECT_EQ(options.max_restarts, 0);
  EXPECT_EQ(options.timeout, std::nullopt);
  EXPECT_THAT(options.command, ElementsAre("prog"));
}

TEST(LaunchOptionsTest, EveryOptionInBothForms) {
  const LaunchOptions options =
      parse({"--nproc=3", "--grace", "1.5", "--log-dir=a=b", "--console", "1", "--no-prefix",
             "--master-addr", "localhost", "--master-port=5", "--max-restarts", "4",
             "--timeout=0.25", "prog"});
  EXPECT_EQ(options.nproc, 3);
  EXPECT_EQ(options.grace, std::chrono::milliseconds(1500));
  EXPECT_EQ(options.log_dir, "a=b");
  EXPECT_FALSE(options.console.shows(0));
  EXPECT_TRUE(options.console.shows(1));
  EXPECT_FALSE(options.prefix);
  EXPECT_EQ(options.master_addr, "localhost");
  EXPECT_EQ(options.master_port, 5);
  EXPECT_EQ(options.max_restarts, 4);
  EXPECT_EQ(options.timeout, std::chrono::milliseconds(250));
}

TEST(LaunchOptionsTest, Bl77TheProgramKeepsItsArguments) {
  EXPECT_THAT(
      parse({"-n", "2", "./t", "--r=16", "--help", "--n", "5", "--", "--x", "a b", ""}).command,
      ElementsAre("./t", "--r=16", "--help", "--n", "5", "--", "--x", "a b", ""));
  EXPECT_THAT(parse({"-n", "2", "--", "--odd-name", "--", "x"}).command,
              ElementsAre("--odd-name", "--", "x"));
}

TEST(LaunchOptionsTest, Bl77OptionsAreNotAbbreviated) {
  EXPECT_THAT(problem_of({"--np", "2", "prog"}), HasSubstr("unknown option '--np'"));
  EXPECT_THAT(problem_of({"-n2", "prog"}), HasSubstr("unknown option '-n2'"));
}

TEST(LaunchOptionsTest, ProblemsNameTheOption) {
  EXPECT_THAT(problem_of({"prog"}), HasSubstr("--nproc N"));
  EXPECT_THAT(problem_of({"-n", "2"}), HasSubstr("no program"));
  EXPECT_THAT(problem_of({"-n", "2", ""}), HasSubstr("empty"));
  EXPECT_THAT(problem_of({"-n", "2", "--grace"}), HasSubstr("--grace needs a value"));
  EXPECT_THAT(problem_of({"-n", "2", "--grace", "inf", "p"}), HasSubstr("not 'inf'"));
  EXPECT_THAT(problem_of({"-n", "2", "--grace", "-1", "p"}), HasSubstr("not '-1'"));
  EXPECT_THAT(problem_of({"-n", "4097", "p"}), HasSubstr("1 to 4096"));
  EXPECT_THAT(problem_of({"-n", "99999999999999999999", "p"}), HasSubstr("1 to 4096"));
  EXPECT_THAT(problem_of({"-n", "2", "--master-addr=", "p"}), HasSubstr("--master-addr"));
}

TEST(LaunchOptionsTest, HelpNeedsNothingElse) {
  EXPECT_TRUE(parse({"--help"}).help);
  EXPECT_TRUE(parse({"--version"}).version);
}

TEST(ConsoleFilterTest, Forms) {
  EXPECT_TRUE(ConsoleFilter::parse("all").shows(1000));
  EXPECT_FALSE(ConsoleFilter::parse("none").shows(0));
  EXPECT_TRUE(ConsoleFilter::parse("rank0").shows(0));
  EXPECT_FALSE(ConsoleFilter::parse("rank0").shows(1));
  const ConsoleFilter list = ConsoleFilter::parse("7,1-3");
  for (int rank = 0; rank < 9; ++rank) {
    EXPECT_EQ(list.shows(rank), rank == 7 || (1 <= rank && rank <= 3)) << rank;
  }
  EXPECT_EQ(list.max_rank(), 7);
  for (const char* wrong : {"", ",", "1,", "3-1", "-1", "1-", "a", "0x1", "rank1", "1 2"}) {
    EXPECT_THROW(ConsoleFilter::parse(wrong), UsageError) << wrong;
  }
}

}  // namespace
}  // namespace tessera::launch
