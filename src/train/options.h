// What tessera-train was asked to do: flags after presets and defaults were applied.
//
// Threads: values. No torch here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

namespace tessera::train {

enum class OptimizerKind { kSgd, kAdam, kAdamW, kAdagrad, kRmsProp };
enum class CheckpointKind { kSharded, kFull, kLocal };

struct GptOptions {
  int64_t vocab = 256;
  int64_t width = 64;
  int64_t layers = 2;
  int64_t heads = 4;
  int64_t context = 64;
};

struct WordvecOptions {
  int64_t vocab_size = 2000;
  int64_t dim = 32;
  int64_t window = 4;
  int64_t negatives = 5;
};

struct TrainOptions {
  std::variant<GptOptions, WordvecOptions> model;
  std::string data;

  int64_t steps = 100;         // in all: a resumed run continues up to this one
  int64_t batch = 8;           // samples of a step over all ranks
  int64_t batch_per_rank = 0;  // > 0: the batch grows with the world size
  uint64_t seed = 1;
  double lr = 1e-3;
  bool lr_given = false;  // then it wins over the rate in a checkpoint
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  double clip = 0;  // 0: no clipping
  bool double_precision = false;
  int threads = 0;  // 0: OMP_NUM_THREADS, else the cores shared out over the local ranks

  std::string checkpoint_dir;
  int64_t checkpoint_every = 0;  // 0: only at the end
  int64_t keep_last = 3;
  int64_t keep_every = 0;
  bool async_save = false;
  CheckpointKind kind = CheckpointKind::kSharded;
  bool resume = true;

  std::string metrics;
  std::string save_final;
  int64_t log_every = 10;
  bool plain = false;  // the unwrapped module, world size 1 only
  bool bench = false;

  const char* task_name() const;
};

const char* to_string(OptimizerKind kind);

// Exit codes of tessera-train.
enum ExitCode : int {
  kComplete = 0,
  kFailed = 1,    // any failure without a code of its own
  kBadUsage = 2,  // flags, text, or a checkpoint of another run
  kInterruptedSaved = 75,
  kPeerLost = 76,  // a rank died or did not answer; nothing was saved
  kInterruptedUnsaved = 77,
};

// What came of reading the command line: options, or a text and the code to exit with.
struct ParsedCommand {
  std::optional<TrainOptions> options;
  std::string text;
  int exit_code = kComplete;
};

ParsedCommand parse_command(int argc, const char* const* argv);

}  // namespace tessera::train
