#include "comm/rank_environment.h"

#include <charconv>
#include <cstdlib>

#include "tessera/error.h"

namespace tessera::comm {
namespace {

// One launcher's names for the same four numbers; local ones may be missing.
struct Dialect {
  const char* source;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;
};
constexpr Dialect kDialects[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"},
};

class Reader {
 public:
  explicit Reader(const GetEnv& get) : get_(get) {}

  std::optional<std::string> text(const char* name) const {
    auto value = get_(name);
    if (value && value->empty()) return std::nullopt;
    return value;
  }

  std::optional<int> number(const char* name, int low, int high) const {
    const auto value = text(name);
    if (!value) return std::nullopt;
    int parsed = 0;
    const char* end = value->data() + value->size();
    const auto [stop, error] = std::from_chars(value->data(), end, parsed);
    if (error != std::errc() || stop != end || parsed < low || parsed > high) {
      throw UsageError("environment variable " + std::string(name) + "=\"" + *value +
                       "\" is not a number from " + std::to_string(low) + " to " +
                       std::to_string(high));
    }
    return parsed;
  }

 private:
  const GetEnv& get_;
};

constexpr int kMaxWorld = 1 << 20;

// Slurm sets its variables for everything in an allocation, also for a program that was started
// directly; only a step with several tasks, or one that names MASTER_ADDR, means several ranks.
const Dialect* find_dialect(const Reader& reader) {
  for (const Dialect& dialect : kDialects) {
    const bool has_rank = reader.text(dialect.rank).has_value();
    const bool has_world = reader.text(dialect.world_size).has_value();
    if (!has_rank && !has_world) continue;
    const bool is_torchrun = &dialect == &kDialects[0];
    if (has_rank && has_world) {
      if (!is_torchrun && !reader.text("MASTER_ADDR") &&
          reader.number(dialect.world_size, 1, kMaxWorld) == 1) {
        continue;
      }
      return &dialect;
    }
    if (!is_torchrun) continue;
    const char* present = has_rank ? dialect.rank : dialect.world_size;
    const char* missing = has_rank ? dialect.world_size : dialect.rank;
    throw UsageError("environment variable " + std::string(present) + " is set but " + missing +
                     " is not: start the program with tessera-run (or torchrun, mpirun, srun), or "
                     "set both; unset " +
                     present + " to run alone");
  }
  return nullptr;
}

// Slurm's list of tasks on each node of a step, "4(x2),3": how many this node has. (The variable
// SLURM_NTASKS_PER_NODE repeats a flag of srun, is mostly missing, and is wrong for uneven nodes.)
std::optional<int> slurm_tasks_here(const Reader& reader) {
  auto list = reader.text("SLURM_STEP_TASKS_PER_NODE");
  if (!list) list = reader.text("SLURM_TASKS_PER_NODE");
  const auto node = reader.number("SLURM_NODEID", 0, kMaxWorld);
  if (!list || !node) return std::nullopt;
  int nodes_left = *node;
  const char* at = list->data();
  const char* end = at + list->size();
  while (at < end) {
    int tasks = 0, repeat = 1;
    auto parsed = std::from_chars(at, end, tasks);
    if (parsed.ec != std::errc()) return std::nullopt;
    at = parsed.ptr;
    if (end - at > 2 && at[0] == '(' && at[1] == 'x') {
      parsed = std::from_chars(at + 2, end, repeat);
      if (parsed.ec != std::errc() || parsed.ptr == end || *parsed.ptr != ')') return std::nullopt;
      at = parsed.ptr + 1;
    }
    if (nodes_left < repeat) return tasks;
    nodes_left -= repeat;
    if (at < end && *at++ != ',') return std::nullopt;
  }
  return std::nullopt;
}

void read_master(const Reader& reader, RankEnvironment& out) {
  const auto address = reader.text("MASTER_ADDR");
  if (!address) {
    throw UsageError("WORLD_SIZE is " + std::to_string(out.world_size) + " (from " + out.source +
                     ") but MASTER_ADDR is not set: name the host of rank 0, for example "
                     "MASTER_ADDR=127.0.0.1 MASTER_PORT=29500");
  }
  out.master_addr = *address;
  out.master_port = reader.number("MASTER_PORT", 1, 65535).value_or(29500);
  const auto external = reader.text("TORCHELASTIC_USE_AGENT_STORE");
  out.store_is_external =
      external && (*external == "True" || *external == "true" || *external == "1");
  out.store_prefix = "tessera/" + reader.text("TORCHELASTIC_RUN_ID").value_or("none") + "/" +
                     reader.text("TORCHELASTIC_RESTART_COUNT").value_or("0");
}

std::optional<std::string> process_environment(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

}  // namespace

RankEnvironment read_rank_environment(const GetEnv& get) {
  const GetEnv& source = get ? get : GetEnv(process_environment);
  const Reader reader(source);
  RankEnvironment out;
  const Dialect* dialect = find_dialect(reader);
  if (dialect == nullptr) return out;
  out.source = dialect->source;
  out.world_size = *reader.number(dialect->world_size, 1, kMaxWorld);
  out.rank = *reader.number(dialect->rank, 0, kMaxWorld);
  if (out.rank >= out.world_size) {
    throw UsageError(std::string(dialect->rank) + "=" + std::to_string(out.rank) +
                     " is not below " + dialect->world_size + "=" + std::to_string(out.world_size));
  }
  out.local_rank = reader.number(dialect->local_rank, 0, kMaxWorld).value_or(out.rank);
  out.local_world_size = reader.number(dialect->local_world_size, 1, kMaxWorld)
                             .value_or(dialect->local_world_size ? out.world_size : 1);
  if (out.source == "Slurm") {
    out.local_world_size = slurm_tasks_here(reader).value_or(out.local_world_size);
  }
  if (out.local_rank >= out.local_world_size) {
    throw UsageError(std::string(dialect->local_rank) + "=" + std::to_string(out.local_rank) +
                     " is not below the number of ranks on this host, " +
                     std::to_string(out.local_world_size) + " (" + dialect->local_world_size + ")");
  }
  if (out.world_size > 1) read_master(reader, out);
  return out;
}

}  // namespace tessera::comm
