#include "launch/environment.h"

#include <gmock/gmock.h>

#include <set>

namespace tessera::launch {
namespace {

using ::testing::ElementsAre;

TEST(LaunchEnvironment, Bl78ValuesOfTheCallerStayByteForByte) {
  const char* base[] = {"A= (x2) \"'$HOME=\xff", "EMPTY=", "no equals sign", "A_B=1", nullptr};
  EnvironmentBlock block(base);
  EXPECT_THAT(block.entries(),
              ElementsAre("A= (x2) \"'$HOME=\xff", "EMPTY=", "no equals sign", "A_B=1"));
  EXPECT_EQ(block.get("A"), " (x2) \"'$HOME=\xff");
  EXPECT_EQ(block.get("EMPTY"), "");
  EXPECT_EQ(block.get("A_"), std::nullopt);
  EXPECT_EQ(block.get("ABSENT"), std::nullopt);
}

TEST(LaunchEnvironment, SetReplacesEveryEntryOfThatNameAndNoOther) {
  const char* base[] = {"RANK=7", "RANKS=1", "XRANK=2", "RANK=8", nullptr};
  EnvironmentBlock block(base);
  block.set("RANK", "0");
  EXPECT_THAT(block.entries(), ElementsAre("RANKS=1", "XRANK=2", "RANK=0"));
}

TEST(LaunchEnvironment, PointersEndWithNull) {
  const char* base[] = {"A=1", "B=2", nullptr};
  EnvironmentBlock block(base);
  const std::vector<char*> pointers = block.pointers();
  ASSERT_EQ(pointers.size(), 3u);
  EXPECT_STREQ(pointers[0], "A=1");
  EXPECT_STREQ(pointers[1], "B=2");
  EXPECT_EQ(pointers[2], nullptr);
  EXPECT_TRUE(EnvironmentBlock(nullptr).entries().empty());
}

TEST(LaunchEnvironment, RankVariablesAreTheContractOfTorchrun) {
  EnvironmentBlock block(nullptr);
  RankEnvironment values;
  values.rank = 2;
  values.world_size = 3;
  values.master_addr = "::1";
  values.master_port = 4711;
  values.run_id = "id";
  values.restart_count = 1;
  values.max_restarts = 4;
  set_rank_variables(block, values);
  const std::set<std::string> got(block.entries().begin(), block.entries().end());
  EXPECT_EQ(got, (std::set<std::string>{
                     "RANK=2", "WORLD_SIZE=3", "LOCAL_RANK=2", "LOCAL_WORLD_SIZE=3", "GROUP_RANK=0",
                     "GROUP_WORLD_SIZE=1", "ROLE_NAME=default", "ROLE_RANK=2", "ROLE_WORLD_SIZE=3",
                     "MASTER_ADDR=::1", "MASTER_PORT=4711", "TORCHELASTIC_USE_AGENT_STORE=True",
                     "TORCHELASTIC_RUN_ID=id", "TORCHELASTIC_RESTART_COUNT=1",
                     "TORCHELASTIC_MAX_RESTARTS=4"}));
}

TEST(LaunchEnvironment, RunIdsDiffer) {
  std::set<std::string> ids;
  for (int i = 0; i < 1000; ++i) ids.insert(make_run_id());
  EXPECT_EQ(ids.size(), 1000u);
}

}  // namespace
}  // namespace tessera::launch
