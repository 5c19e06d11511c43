// The environments that launchers leave, recorded from them or written to their documentation, and
// every way in which they can contradict themselves.
#include "comm/rank_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <ostream>
#include <string>

#include "tessera/error.h"

namespace tessera::comm {
namespace {

using Variables = std::map<std::string, std::string>;
using testing::HasSubstr;

RankEnvironment read(const Variables& variables) {
  return read_rank_environment([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

const Variables kTorchrun = {
    {"RANK", "5"},
    {"WORLD_SIZE", "8"},
    {"LOCAL_RANK", "1"},
    {"LOCAL_WORLD_SIZE", "4"},
    {"GROUP_RANK", "1"},
    {"ROLE_RANK", "5"},
    {"MASTER_ADDR", "node0"},
    {"MASTER_PORT", "38215"},
    {"TORCHELASTIC_USE_AGENT_STORE", "True"},
    {"TORCHELASTIC_RUN_ID", "2ba0b953"},
    {"TORCHELASTIC_RESTART_COUNT", "2"},
};
// mpirun (Open MPI 4.1.4) -np 2, the second rank.
const Variables kOpenMpi = {
    {"OMPI_COMM_WORLD_RANK", "1"},
    {"OMPI_COMM_WORLD_SIZE", "2"},
    {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
    {"OMPI_COMM_WORLD_NODE_RANK", "1"},
    {"OMPI_UNIVERSE_SIZE", "2"},
    {"PMIX_RANK", "1"},
    {"MASTER_ADDR", "127.0.0.1"},
    {"MASTER_PORT", "29123"},
};
// mpiexec of the Hydra kind.
const Variables kPmi = {
    {"PMI_RANK", "3"},        {"PMI_SIZE", "4"},           {"MPI_LOCALRANKID", "1"},
    {"MPI_LOCALNRANKS", "2"}, {"MASTER_ADDR", "10.0.0.1"},
};
// srun --nodes 2 --ntasks 8 --ntasks-per-node 4, the seventh task.
const Variables kSlurm = {
    {"SLURM_PROCID", "6"},          {"SLURM_NTASKS", "8"},    {"SLURM_LOCALID", "2"},
    {"SLURM_NTASKS_PER_NODE", "4"}, {"SLURM_NODEID", "1"},    {"SLURM_NNODES", "2"},
    {"SLURM_JOB_ID", "4711"},       {"SLURM_STEP_ID", "0"},   {"SLURM_JOB_NODELIST", "node[0-1]"},
    {"MASTER_ADDR", "node0"},       {"MASTER_PORT", "29600"},
};

TEST(RankEnvironment, NothingSetIsWorldOne) {
  const RankEnvironment environment = read({{"PATH", "/bin"}, {"MASTER_ADDR", "node0"}});
  EXPECT_EQ(environment.rank, 0);
  EXPECT_EQ(environment.world_size, 1);
  EXPECT_EQ(environment.local_rank, 0);
  EXPECT_EQ(environment.local_world_size, 1);
  EXPECT_FALSE(environment.store_is_external);
  EXPECT_EQ(environment.source, "none");
}

TEST(RankEnvironment, EmptyVariablesAreNotSet) {
  const RankEnvironment environment = read({{"RANK", ""}, {"WORLD_SIZE", ""}});
  EXPECT_EQ(environment.world_size, 1);
  EXPECT_EQ(environment.source, "none");
}

TEST(RankEnvironment, Torchrun) {
  const RankEnvironment environment = read(kTorchrun);
  EXPECT_EQ(environment.rank, 5);
  EXPECT_EQ(environment.world_size, 8);
  EXPECT_EQ(environment.local_rank, 1);
  EXPECT_EQ(environment.local_world_size, 4);
  EXPECT_EQ(environment.master_addr, "node0");
  EXPECT_EQ(environment.master_port, 38215);
  EXPECT_TRUE(environment.store_is_external);
  EXPECT_EQ(environment.store_prefix, "tessera/2ba0b953/2");
  EXPECT_EQ(environment.source, "torchrun");
}

TEST(RankEnvironment, ARestartMeetsUnderAnotherName) {
  const std::string first =
      read(with(kTorchrun, {{"TORCHELASTIC_RESTART_COUNT", "0"}})).store_prefix;
  const std::string second =
      read(with(kTorchrun, {{"TORCHELASTIC_RESTART_COUNT", "1"}})).store_prefix;
  EXPECT_NE(first, second);
}

TEST(RankEnvironment, StoreIsOfRankZeroUnlessTheLauncherHasOne) {
  EXPECT_FALSE(read(without(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE")).store_is_external);
  EXPECT_FALSE(
      read(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})).store_is_external);
  EXPECT_TRUE(read(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "1"}})).store_is_external);
}

TEST(RankEnvironment, OpenMpi) {
  const RankEnvironment environment = read(kOpenMpi);
  EXPECT_EQ(environment.rank, 1);
  EXPECT_EQ(environment.world_size, 2);
  EXPECT_EQ(environment.local_rank, 1);
  EXPECT_EQ(environment.local_world_size, 2);
  EXPECT_EQ(environment.master_addr, "127.0.0.1");
  EXPECT_EQ(environment.master_port, 29123);
  EXPECT_FALSE(environment.store_is_external);
  EXPECT_EQ(environment.source, "Open MPI");
}

TEST(RankEnvironment, PmiWithTheDefaultPort) {
  const RankEnvironment environment = read(kPmi);
  EXPECT_EQ(environment.rank, 3);
  EXPECT_EQ(environment.world_size, 4);
  EXPECT_EQ(environment.local_rank, 1);
  EXPECT_EQ(environment.local_world_size, 2);
  EXPECT_EQ(environment.master_port, 29500);
  EXPECT_EQ(environment.source, "PMI");
}

TEST(RankEnvironment, Slurm) {
  const RankEnvironment environment = read(kSlurm);
  EXPECT_EQ(environment.rank, 6);
  EXPECT_EQ(environment.world_size, 8);
  EXPECT_EQ(environment.local_rank, 2);
  EXPECT_EQ(environment.local_world_size, 4);
  EXPECT_EQ(environment.master_addr, "node0");
  EXPECT_EQ(environment.master_port, 29600);
  EXPECT_EQ(environment.source, "Slurm");
}

// srun without --ntasks-per-node: only the list of tasks on each node says how many are here.
TEST(RankEnvironment, SlurmCountsTheTasksOfThisNode) {
  const Variables uneven = with(without(kSlurm, "SLURM_NTASKS_PER_NODE"), {{"SLURM_NNODES", "3"}});
  const auto local_world = [&](const char* list, const char* node, const char* local_rank) {
    return read(with(uneven, {{"SLURM_STEP_TASKS_PER_NODE", list},
                              {"SLURM_TASKS_PER_NODE", "9(x3)"},
                              {"SLURM_NODEID", node},
                              {"SLURM_LOCALID", local_rank}}))
        .local_world_size;
  };
  EXPECT_EQ(local_world("3(x2),2", "0", "0"), 3);
  EXPECT_EQ(local_world("3(x2),2", "1", "2"), 3);
  EXPECT_EQ(local_world("3(x2),2", "2", "1"), 2);
  EXPECT_EQ(local_world("2,6", "1", "5"), 6);
  EXPECT_EQ(local_world("8", "0", "7"), 8);
  EXPECT_THROW(local_world("3(x2),2", "2", "2"), UsageError);
  EXPECT_EQ(read(with(uneven, {{"SLURM_TASKS_PER_NODE", "4(x2)"}})).local_world_size, 4);
  // What cannot be understood leaves the flag's value, or one host.
  EXPECT_EQ(local_world("3(x", "1", "2"), 8);
  EXPECT_EQ(local_world("", "1", "2"), 9);
}

// A program that an interactive allocation starts directly has Slurm's variables and is alone.
TEST(RankEnvironment, SlurmSingleTaskWithoutMasterIsAlone) {
  const Variables allocation = {
      {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"SLURM_LOCALID", "0"}};
  EXPECT_EQ(read(allocation).source, "none");
  EXPECT_EQ(read(allocation).world_size, 1);
  EXPECT_EQ(read(with(allocation, {{"MASTER_ADDR", "node0"}})).source, "Slurm");
}

TEST(RankEnvironment, SlurmAllocationWithoutATaskIsAlone) {
  EXPECT_EQ(read({{"SLURM_NTASKS", "8"}, {"SLURM_JOB_ID", "4711"}}).source, "none");
}

TEST(RankEnvironment, TorchrunWithinSlurmIsTorchrun) {
  const RankEnvironment environment = read(with(kSlurm, kTorchrun));
  EXPECT_EQ(environment.source, "torchrun");
  EXPECT_EQ(environment.rank, 5);
}

TEST(RankEnvironment, WorldOneNeedsNoMaster) {
  EXPECT_EQ(read({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).world_size, 1);
  EXPECT_EQ(read({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}).world_size, 1);
}

TEST(RankEnvironment, WithoutLocalVariablesAllRanksAreOnThisHost) {
  const RankEnvironment environment =
      read({{"RANK", "1"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "127.0.0.1"}});
  EXPECT_EQ(environment.local_rank, 1);
  EXPECT_EQ(environment.local_world_size, 3);
}

struct BadCase {
  const char* name;
  Variables variables;
  std::vector<std::string> named;  // what the message must say
};

std::ostream& operator<<(std::ostream& out, const BadCase& bad) { return out << bad.name; }

class BadRankEnvironment : public testing::TestWithParam<BadCase> {};

TEST_P(BadRankEnvironment, IsRefusedNamingTheVariable) {
  try {
    read(GetParam().variables);
    FAIL() << "accepted";
  } catch (const UsageError& error) {
    for (const std::string& text : GetParam().named) EXPECT_THAT(error.what(), HasSubstr(text));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, BadRankEnvironment,
    testing::Values(
        BadCase{
            "WorldWithoutRank", without(kTorchrun, "RANK"), {"WORLD_SIZE is set", "RANK is not"}},
        BadCase{"RankWithoutWorld",
                without(kTorchrun, "WORLD_SIZE"),
                {"RANK is set", "WORLD_SIZE is not"}},
        BadCase{"RankEqualsWorld", with(kTorchrun, {{"RANK", "8"}}), {"RANK=8", "WORLD_SIZE=8"}},
        BadCase{"RankIsNoNumber", with(kTorchrun, {{"RANK", "first"}}), {"RANK", "first"}},
        BadCase{"RankHasATail", with(kTorchrun, {{"RANK", "1x"}}), {"RANK", "1x"}},
        BadCase{"RankIsNegative", with(kTorchrun, {{"RANK", "-1"}}), {"RANK", "-1"}},
        BadCase{"RankHasASpace", with(kTorchrun, {{"RANK", " 1"}}), {"RANK", "\" 1\""}},
        BadCase{
            "RankIsTooLarge", with(kTorchrun, {{"RANK", "99999999999"}}), {"RANK", "99999999999"}},
        BadCase{"WorldIsZero", with(kTorchrun, {{"WORLD_SIZE", "0"}}), {"WORLD_SIZE", "\"0\""}},
        BadCase{
            "WorldIsAFraction", with(kTorchrun, {{"WORLD_SIZE", "2.5"}}), {"WORLD_SIZE", "2.5"}},
        BadCase{"NoMaster", without(kTorchrun, "MASTER_ADDR"), {"MASTER_ADDR", "WORLD_SIZE is 8"}},
        BadCase{"EmptyMaster", with(kTorchrun, {{"MASTER_ADDR", ""}}), {"MASTER_ADDR"}},
        BadCase{"PortZero", with(kTorchrun, {{"MASTER_PORT", "0"}}), {"MASTER_PORT", "\"0\""}},
        BadCase{
            "PortTooLarge", with(kTorchrun, {{"MASTER_PORT", "65536"}}), {"MASTER_PORT", "65536"}},
        BadCase{
            "PortIsNoNumber", with(kTorchrun, {{"MASTER_PORT", "http"}}), {"MASTER_PORT", "http"}},
        BadCase{"LocalRankTooLarge", with(kTorchrun, {{"LOCAL_RANK", "4"}}), {"LOCAL_RANK=4", "4"}},
        BadCase{
            "LocalWorldIsZero", with(kTorchrun, {{"LOCAL_WORLD_SIZE", "0"}}), {"LOCAL_WORLD_SIZE"}},
        BadCase{
            "OpenMpiWithoutMaster", without(kOpenMpi, "MASTER_ADDR"), {"MASTER_ADDR", "Open MPI"}},
        BadCase{"OpenMpiRankIsNoNumber",
                with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "x"}}),
                {"OMPI_COMM_WORLD_RANK"}},
        BadCase{"PmiWithoutMaster", without(kPmi, "MASTER_ADDR"), {"MASTER_ADDR", "PMI"}},
        BadCase{"SlurmWithoutMaster", without(kSlurm, "MASTER_ADDR"), {"MASTER_ADDR", "Slurm"}},
        BadCase{"SlurmRankAboveWorld",
                with(kSlurm, {{"SLURM_PROCID", "8"}}),
                {"SLURM_PROCID=8", "SLURM_NTASKS=8"}}),
    [](const auto& bad) { return std::string(bad.param.name); });

}  // namespace
}  // namespace tessera::comm
