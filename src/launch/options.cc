#include "launch/options.h"

#include <fmt/format.h>
#include <sched.h>

#include <charconv>
#include <cmath>
#include <functional>
#include <map>
#include <string_view>
#include <thread>

#include "tessera/error.h"

namespace tessera::launch {
namespace {

int parse_int(std::string_view option, std::string_view text, int lowest, int highest) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < lowest ||
      value > highest) {
    throw UsageError(fmt::format("{} takes a whole number from {} to {}, not '{}'", option, lowest,
                                 highest, text));
  }
  return value;
}

std::chrono::milliseconds parse_seconds(std::string_view option, std::string_view text) {
  constexpr double kMaxSeconds = 1e9;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value) ||
      value < 0 || value > kMaxSeconds) {
    throw UsageError(
        fmt::format("{} takes a number of seconds from 0 to 1e9, not '{}'", option, text));
  }
  return std::chrono::milliseconds(std::llround(value * 1000));
}

struct Option {
  bool takes_value;
  std::function<void(LaunchOptions&, const std::string& name, const std::string& value)> apply;
};

const std::map<std::string, Option, std::less<>>& option_table() {
  using O = LaunchOptions;
  using S = const std::string&;
  static const Option nproc{true, [](O& o, S name, S v) {
                              o.nproc = v == "auto" ? available_cores()
                                                    : parse_int(name, v, 1, kMaxRanks);
                            }};
  static const Option help{false, [](O& o, S, S) { o.help = true; }};
  static const std::map<std::string, Option, std::less<>> table = {
      {"--nproc", nproc},
      {"-n", nproc},
      {"--grace", {true, [](O& o, S name, S v) { o.grace = parse_seconds(name, v); }}},
      {"--log-dir", {true, [](O& o, S, S v) { o.log_dir = v; }}},
      {"--console", {true, [](O& o, S, S v) { o.console = ConsoleFilter::parse(v); }}},
      {"--no-prefix", {false, [](O& o, S, S) { o.prefix = false; }}},
      {"--master-addr", {true, [](O& o, S, S v) { o.master_addr = v; }}},
      {"--master-port",
       {true, [](O& o, S name, S v) { o.master_port = parse_int(name, v, 0, 65535); }}},
      {"--max-restarts",
       {true, [](O& o, S name, S v) { o.max_restarts = parse_int(name, v, 0, 1000000); }}},
      {"--timeout", {true, [](O& o, S name, S v) { o.timeout = parse_seconds(name, v); }}},
      {"--help", help},
      {"-h", help},
      {"--version", {false, [](O& o, S, S) { o.version = true; }}},
  };
  return table;
}

void check_complete(const LaunchOptions& options) {
  if (options.nproc == 0) throw UsageError("say how many ranks to start: --nproc N");
  if (options.command.empty()) throw UsageError("no program to start was given");
  if (options.command[0].empty()) throw UsageError("the name of the program is empty");
  if (options.master_addr.empty()) throw UsageError("--master-addr is empty");
  if (options.console.max_rank() >= options.nproc) {
    throw UsageError(fmt::format("--console names rank {}, but the ranks are 0 to {}",
                                 options.console.max_rank(), options.nproc - 1));
  }
}

}  // namespace

ConsoleFilter ConsoleFilter::parse(const std::string& text) {
  ConsoleFilter filter;
  if (text == "all") return filter;
  filter.all_ = false;
  if (text == "none") return filter;
  if (text == "rank0") {
    filter.ranges_.emplace_back(0, 0);
    return filter;
  }
  std::string_view rest = text;
  while (true) {
    const size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    const size_t dash = item.find('-');
    if (item.empty()) {
      throw UsageError(fmt::format(
          "--console takes all, rank0, none or a list of ranks such as 0,2-5, not '{}'", text));
    }
    const int first = parse_int("--console", item.substr(0, dash), 0, kMaxRanks);
    const int last = dash == std::string_view::npos
                         ? first
                         : parse_int("--console", item.substr(dash + 1), first, kMaxRanks);
    filter.ranges_.emplace_back(first, last);
    if (comma == std::string_view::npos) return filter;
    rest.remove_prefix(comma + 1);
  }
}

bool ConsoleFilter::shows(int rank) const {
  if (all_) return true;
  for (const auto& [first, last] : ranges_) {
    if (first <= rank && rank <= last) return true;
  }
  return false;
}

int ConsoleFilter::max_rank() const {
  int highest = -1;
  for (const auto& range : ranges_) highest = std::max(highest, range.second);
  return highest;
}

LaunchOptions parse_options(int argc, const char* const* argv) {
  LaunchOptions options;
  int at = 1;
  for (; at < argc; ++at) {
    const std::string argument = argv[at];
    if (argument == "--") {
      ++at;
      break;
    }
    if (argument.empty() || argument[0] != '-') break;
    const size_t equals = argument.rfind("--", 0) == 0 ? argument.find('=') : std::string::npos;
    const std::string name = argument.substr(0, equals);
    const auto found = option_table().find(name);
    if (found == option_table().end()) {
      throw UsageError(fmt::format(
          "unknown option '{}' (options of the program come after its name)", argument));
    }
    const Option& option = found->second;
    if (!option.takes_value && equals != std::string::npos) {
      throw UsageError(fmt::format("{} takes no value", name));
    }
    std::string value;
    if (equals != std::string::npos) {
      value = argument.substr(equals + 1);
    } else if (option.takes_value) {
      if (++at >= argc) throw UsageError(fmt::format("{} needs a value", name));
      value = argv[at];
    }
    option.apply(options, name, value);
  }
  for (; at < argc; ++at) options.command.emplace_back(argv[at]);
  if (!options.help && !options.version) check_complete(options);
  return options;
}

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

std::string usage_text() {
  return R"(usage: tessera-run --nproc N [options] [--] program [arguments]

Starts N copies ("ranks") of a program on this machine, each with its rank in the
environment, and ends all of them when one fails. Everything from the program name on
is passed to the program unchanged.

  -n, --nproc N          ranks to start; "auto" means one for each available core
  --grace SECONDS        time from SIGTERM to SIGKILL when ranks are stopped (default 30)
  --log-dir DIR          also write DIR/rank-R.stdout and DIR/rank-R.stderr (appended to)
  --console RANKS        ranks shown here: all (default), rank0, none, or a list: 0,2-5
  --no-prefix            do not put "[rank R] " before each line
  --master-addr ADDRESS  address that the rendezvous store listens on (default 127.0.0.1)
  --master-port PORT     its port; 0 (default) takes a free one
  --max-restarts K       start all ranks again after a failure, up to K times (default 0)
  --timeout SECONDS      stop the whole run after this time
  -h, --help             show this text
  --version              show the version

The ranks find RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and
the other variables of torchrun. OMP_NUM_THREADS is left as it is where it is set; otherwise
it becomes the number of available cores divided by N.

SIGINT (Ctrl-C), SIGTERM, SIGHUP and SIGQUIT are passed on to the ranks, which then have
the grace time to end; a second one ends them at once. SIGUSR1 and SIGUSR2 are passed on.

exit codes:
  0       every rank ended with 0
  1..255  the code of the first rank that failed; 128+S where signal S ended it
  2       wrong usage of tessera-run
  124     the run was stopped by --timeout
  125     tessera-run itself failed (store, log directory, a rank that cannot be ended)
  126     the program cannot be executed
  127     the program was not found
)";
}

}  // namespace tessera::launch
