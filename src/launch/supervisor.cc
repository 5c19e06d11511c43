#include "launch/supervisor.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>

#include "launch/listen_socket.h"
#include "launch/report.h"

namespace tessera::launch {
namespace {

// What the shell uses where PATH is not set.
constexpr const char* kDefaultPath = "/usr/local/bin:/usr/bin:/bin";

int rank_code(const Worker& worker) {
  if (worker.exec_error == 0) return worker.status->code();
  return worker.exec_error == ENOENT || worker.exec_error == ENOTDIR ? 127 : 126;
}

}  // namespace

Supervisor::Supervisor(LaunchOptions options, EnvironmentBlock environment,
                       StoreHostFactory store_factory, SignalIntake& signals, Output& output,
                       Guard& guard)
    : options_(std::move(options)),
      environment_(std::move(environment)),
      store_factory_(std::move(store_factory)),
      signals_(signals),
      output_(output),
      guard_(guard),
      run_id_(make_run_id()) {}

int Supervisor::run() {
  ResolvedProgram program =
      resolve_program(options_.command[0], environment_.get("PATH").value_or(kDefaultPath));
  if (program.path.empty()) {
    output_.say(program.problem);
    return program.exit_code;
  }
  program_path_ = std::move(program.path);
  choose_threads();
  if (options_.timeout) time_limit_ = Clock::now() + *options_.timeout;
  for (int number = 0;; ++number) {
    const AttemptResult result = run_attempt(number);
    const bool again = result.ending == Ending::kFailure && result.stuck.empty() &&
                       number < options_.max_restarts && failure_code_ != 126 &&
                       failure_code_ != 127;
    if (!again) return exit_code(result);
    output_.say(fmt::format("starting all ranks again (restart {} of {})", number + 1,
                            options_.max_restarts));
  }
}

void Supervisor::choose_threads() {
  if (environment_.get("OMP_NUM_THREADS")) return;
  const int cores = available_cores();
  const int threads = std::max(1, cores / options_.nproc);
  environment_.set("OMP_NUM_THREADS", std::to_string(threads));
  output_.say(
      fmt::format("OMP_NUM_THREADS={} for each rank ({} cores, {} ranks); set it to choose "
                  "another number",
                  threads, cores, options_.nproc));
}

AttemptResult Supervisor::run_attempt(int number) {
  ListenSocket socket = bind_listen_socket(options_.master_addr, options_.master_port);
  const int port = socket.port;
  const std::unique_ptr<StoreHost> store =
      store_factory_({options_.master_addr, port, socket.fd.release()});
  RankGroup ranks(&guard_);
  start_ranks(number, port, ranks);
  AttemptResult result = Attempt(options_, signals_, output_, ranks, time_limit_).run();
  report(result, ranks);
  hurried_ = result.hurried;
  return result;
}

void Supervisor::start_ranks(int number, int port, RankGroup& ranks) {
  UniqueFd null_input(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!null_input) throw_errno("cannot open /dev/null");
  // A rank in a background process group would be stopped when it reads from the terminal.
  const bool give_input = ::isatty(STDIN_FILENO) == 0;
  RankEnvironment values;
  values.world_size = options_.nproc;
  values.master_addr = options_.master_addr;
  values.master_port = port;
  values.run_id = run_id_;
  values.restart_count = number;
  values.max_restarts = options_.max_restarts;
  for (int rank = 0; rank < options_.nproc; ++rank) {
    values.rank = rank;
    EnvironmentBlock environment = environment_;
    set_rank_variables(environment, values);
    const Output::RankEnds ends = output_.open_rank(rank, number);
    SpawnRequest request;
    request.path = program_path_;
    request.arguments = options_.command;
    request.environment = &environment;
    request.standard_input = rank == 0 && give_input ? STDIN_FILENO : null_input.get();
    request.standard_output = ends.out;
    request.standard_error = ends.err;
    request.signals = &signals_.inherited();
    ranks.add(rank, spawn(request));
  }
}

void Supervisor::report(const AttemptResult& result, const RankGroup& ranks) {
  if (result.first_failed) failure_code_ = rank_code(ranks.worker(*result.first_failed));
  if (result.ending != Ending::kSuccess) {
    const bool failed = result.ending == Ending::kFailure;
    const auto tail = failed && result.first_failed ? output_.stderr_tail(*result.first_failed)
                                                    : std::vector<std::string>{};
    AttemptResult shown = result;
    // Ranks that end because they were told to have not failed.
    if (!failed) shown.first_failed.reset();
    for (const std::string& line :
         failure_report(shown, ranks.workers(), tail, options_.command[0])) {
      output_.say_plain(line);
    }
  }
  for (const std::string& stuck : result.stuck) {
    output_.say(fmt::format("{} could not be ended even by SIGKILL; it is left behind", stuck));
  }
}

int Supervisor::exit_code(const AttemptResult& result) const {
  if (result.ending == Ending::kTimeLimit) return kExitTimeLimit;
  if (result.first_failed) return failure_code_;
  return result.stuck.empty() ? 0 : kExitLauncherFailed;
}

}  // namespace tessera::launch
