#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "launch/child_process.h"
#include "launch/console_sink.h"
#include "launch/process_tree.h"
#include "launch/rank_group.h"
#include "launch/report.h"

namespace tessera::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

InheritedSignals current_signals() {
  InheritedSignals signals{};
  ::sigprocmask(SIG_SETMASK, nullptr, &signals.mask);
  ::sigaction(SIGPIPE, nullptr, &signals.pipe_action);
  return signals;
}

SpawnedProcess spawn_shell(const std::string& text) {
  EnvironmentBlock environment(environ);
  const InheritedSignals signals = current_signals();
  SpawnRequest request;
  request.path = "/bin/sh";
  request.arguments = {"sh", "-c", text};
  request.environment = &environment;
  request.signals = &signals;
  return spawn(request);
}

// Waits until the process has ended, and leaves it to be collected.
void wait_for_zombie(pid_t pid) {
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT), 0);
}

TEST(LaunchProcess, Bl76RanksAreReapedInTheOrderInWhichTheyEnded) {
  RankGroup ranks;
  std::vector<pid_t> pids;
  for (int rank = 0; rank < 5; ++rank) {
    SpawnedProcess process = spawn_shell("sleep 600");
    pids.push_back(process.pid);
    ranks.add(rank, std::move(process));
  }
  for (const int rank : {3, 0, 4, 2}) {
    ASSERT_EQ(::kill(pids[static_cast<size_t>(rank)], SIGKILL), 0);
    wait_for_zombie(pids[static_cast<size_t>(rank)]);
  }
  EXPECT_THAT(ranks.reap(), ElementsAre(3, 0, 4, 2));
  EXPECT_FALSE(ranks.all_ended());
  ASSERT_EQ(::kill(pids[1], SIGKILL), 0);
  wait_for_zombie(pids[1]);
  EXPECT_THAT(ranks.reap(), ElementsAre(1));
  EXPECT_TRUE(ranks.all_ended());
}

TEST(LaunchProcess, ARankLeadsItsOwnProcessGroup) {
  RankGroup ranks;
  SpawnedProcess process = spawn_shell("exec sleep 600");
  const pid_t pid = process.pid;
  EXPECT_EQ(::getpgid(pid), pid);
  ranks.add(0, std::move(process));
  ranks.signal_groups(SIGTERM, true);
  wait_for_zombie(pid);
  EXPECT_THAT(ranks.reap(), ElementsAre(0));
  EXPECT_TRUE(ranks.groups_gone());
  EXPECT_EQ(ranks.worker(0).stop_signal, SIGTERM);
  EXPECT_EQ(ranks.worker(0).status->code(), 128 + SIGTERM);
}

TEST(LaunchProcess, AnExecThatFailsReportsItsErrorThroughThePipe) {
  EnvironmentBlock environment(environ);
  const InheritedSignals signals = current_signals();
  SpawnRequest request;
  request.path = "/nowhere/program";
  request.arguments = {"program"};
  request.environment = &environment;
  request.signals = &signals;
  RankGroup ranks;
  SpawnedProcess process = spawn(request);
  const pid_t pid = process.pid;
  ranks.add(0, std::move(process));
  wait_for_zombie(pid);
  EXPECT_THAT(ranks.reap(), ElementsAre(0));
  EXPECT_EQ(ranks.worker(0).exec_error, ENOENT);
}

TEST(LaunchProcess, Bl68ExitStatus) {
  const ExitStatus code = ExitStatus::from_wait(7 << 8);
  EXPECT_EQ(code.code(), 7);
  EXPECT_FALSE(code.ok());
  EXPECT_EQ(code.describe(), "exited with code 7");
  EXPECT_TRUE(ExitStatus::from_wait(0).ok());
  const ExitStatus killed = ExitStatus::from_wait(SIGSEGV | 0x80);
  EXPECT_EQ(killed.code(), 139);
  EXPECT_EQ(killed.describe(), "was killed by SIGSEGV (core dumped)");
}

TEST(LaunchProcess, SignalNames) {
  EXPECT_EQ(signal_name(SIGKILL), "SIGKILL");
  EXPECT_EQ(signal_name(SIGUSR1), "SIGUSR1");
  EXPECT_EQ(signal_name(SIGRTMIN + 1), "signal 35");
}

TEST(LaunchProcess, ResolveProgram) {
  EXPECT_EQ(resolve_program("sh", "/nowhere:/bin").path, "/bin/sh");
  EXPECT_EQ(resolve_program("/bin/sh", "").path, "/bin/sh");
  EXPECT_EQ(resolve_program("sh", "/nowhere").exit_code, 127);
  EXPECT_EQ(resolve_program("/nowhere/sh", "/bin").exit_code, 127);
  EXPECT_EQ(resolve_program("/etc/passwd/x", "").exit_code, 127);
  const ResolvedProgram refused = resolve_program("passwd", "/etc");
  EXPECT_EQ(refused.exit_code, 126);
  EXPECT_EQ(refused.problem, "cannot execute '/etc/passwd': Permission denied");
  EXPECT_EQ(resolve_program("/etc", "").exit_code, 126);
}

TEST(LaunchProcess, ParseStatTakesNamesWithParentheses) {
  const ProcessInfo info = parse_stat("42 (a) (b c) S 7 9 9 0 -1");
  EXPECT_EQ(info.pid, 42);
  EXPECT_EQ(info.parent, 7);
  EXPECT_EQ(info.group, 9);
  EXPECT_EQ(info.state, 'S');
  EXPECT_EQ(info.name, "a) (b c");
  for (const char* wrong : {"", "42", "42 (a", "x (a) S 1 2", "42 (a) S 1", ") ("}) {
    EXPECT_EQ(parse_stat(wrong).pid, 0) << wrong;
  }
}

TEST(LaunchProcess, DescendantsAreFoundThroughOtherGroups) {
  RankGroup ranks;
  SpawnedProcess process = spawn_shell("setsid sleep 600 & wait");
  const pid_t shell = process.pid;
  ranks.add(0, std::move(process));
  const auto deadline = Clock::now() + std::chrono::seconds(30);
  std::vector<ProcessInfo> strays;
  while (strays.empty() && Clock::now() < deadline) strays = ranks.strays();
  ASSERT_EQ(strays.size(), 1u);
  EXPECT_EQ(strays[0].parent, shell);
  EXPECT_NE(strays[0].group, shell);
  ASSERT_EQ(::kill(strays[0].pid, SIGKILL), 0);
}

Worker ended(int rank, int wait_status, int stop_signal) {
  Worker worker;
  worker.rank = rank;
  worker.pid = 100 + rank;
  worker.status = ExitStatus::from_wait(wait_status);
  worker.stop_signal = stop_signal;
  return worker;
}

TEST(LaunchReport, Bl76OneFirstFailureAndTheRestByTheirEndings) {
  AttemptResult result;
  result.ending = Ending::kFailure;
  result.first_failed = 2;
  std::vector<Worker> workers;
  workers.push_back(ended(0, SIGTERM, SIGTERM));
  workers.push_back(ended(1, SIGTERM, SIGTERM));
  workers.push_back(ended(2, SIGSEGV, 0));
  workers.push_back(ended(3, SIGTERM, SIGTERM));
  workers.push_back(ended(4, SIGKILL, SIGKILL));
  workers.push_back(ended(5, 3 << 8, 0));
  workers.push_back(ended(6, 0, SIGTERM));
  workers.push_back(ended(7, SIGABRT, SIGTERM));
  EXPECT_THAT(
      failure_report(result, workers, {"line 1", "line 2"}, "prog"),
      ElementsAre("tessera-run: first failure: rank 2 (pid 102) was killed by SIGSEGV",
                  "tessera-run: last lines of its standard error:", "    | line 1", "    | line 2",
                  "tessera-run: ranks 0-1, 3: stopped by tessera-run (SIGTERM)",
                  "tessera-run: rank 4: stopped by tessera-run (SIGKILL)",
                  "tessera-run: rank 5: exited with code 3",
                  "tessera-run: rank 6: stopped by tessera-run (SIGTERM), exited with code 0",
                  "tessera-run: rank 7: was killed by SIGABRT after tessera-run asked it to stop"));
}

TEST(LaunchReport, AProgramThatCannotBeExecutedIsOneLine) {
  AttemptResult result;
  result.ending = Ending::kFailure;
  result.first_failed = 0;
  std::vector<Worker> workers;
  workers.push_back(ended(0, 127 << 8, 0));
  workers.back().exec_error = ENOEXEC;
  workers.push_back(ended(1, 127 << 8, 0));
  EXPECT_THAT(failure_report(result, workers, {}, "prog"),
              ElementsAre("tessera-run: cannot execute 'prog': Exec format error"));
}

TEST(LaunchReport, RankList) {
  EXPECT_EQ(rank_list({}), "");
  EXPECT_EQ(rank_list({4}), "4");
  EXPECT_EQ(rank_list({0, 1, 2, 5, 7, 8}), "0-2, 5, 7-8");
}

TEST(ConsoleSinkTest, PiecesForAPipeEndAtALineEnd) {
  Pipe pipe = make_pipe();
  ConsoleSink sink(pipe.write_end.get());
  const std::string line(1500, 'x');
  for (int i = 0; i < 4; ++i) sink.append(line + "\n");
  std::string buffer(1 << 16, '\0');
  sink.write_some();
  EXPECT_EQ(::read(pipe.read_end.get(), buffer.data(), buffer.size()), 2 * 1501);
  sink.write_some();
  EXPECT_EQ(::read(pipe.read_end.get(), buffer.data(), buffer.size()), 2 * 1501);
  EXPECT_FALSE(sink.pending());
}

TEST(ConsoleSinkTest, AReaderThatHasGoneClosesTheSink) {
  const auto old = std::signal(SIGPIPE, SIG_IGN);
  Pipe pipe = make_pipe();
  ConsoleSink sink(pipe.write_end.get());
  pipe.read_end.reset();
  sink.append("x\n");
  sink.write_some();
  EXPECT_EQ(sink.error(), EPIPE);
  sink.append("y\n");
  EXPECT_FALSE(sink.pending());
  std::signal(SIGPIPE, old);
}

}  // namespace
}  // namespace tessera::launch
