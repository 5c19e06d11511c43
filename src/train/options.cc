#include "options.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <vector>

namespace tessera::train {
namespace {

// A model size with the batch and learning rate that go with it.
template <typename Model>
struct Preset {
  const char* name;
  Model model;
  int64_t batch;
  double lr;
};

const std::vector<Preset<GptOptions>>& gpt_presets() {
  static const std::vector<Preset<GptOptions>> presets = {
      {"tiny", {256, 64, 2, 4, 64}, 8, 2e-3},
      {"small", {256, 256, 4, 8, 128}, 16, 1e-3},
      {"30m", {8192, 512, 8, 8, 256}, 8, 6e-4},
      {"124m", {50257, 768, 12, 12, 1024}, 8, 6e-4},
  };
  return presets;
}

const std::vector<Preset<WordvecOptions>>& wordvec_presets() {
  static const std::vector<Preset<WordvecOptions>> presets = {
      {"tiny", {2000, 32, 4, 5}, 256, 0.1},
      {"small", {20000, 128, 5, 5}, 1024, 0.1},
      {"large", {100000, 256, 5, 5}, 4096, 0.1},
  };
  return presets;
}

template <typename Model>
std::vector<std::string> names_of(const std::vector<Preset<Model>>& presets) {
  std::vector<std::string> names;
  names.reserve(presets.size());
  for (const auto& preset : presets) names.emplace_back(preset.name);
  return names;
}

template <typename Model>
const Preset<Model>& find_preset(const std::vector<Preset<Model>>& presets,
                                 const std::string& name) {
  return *std::find_if(presets.begin(), presets.end(),
                       [&](const Preset<Model>& preset) { return name == preset.name; });
}

// Flags as they were given, before a preset fills the rest.
struct Flags {
  TrainOptions train;
  std::string preset = "tiny";
  std::optional<int64_t> batch;
  std::optional<double> lr;
  std::optional<OptimizerKind> optimizer;
  std::optional<double> clip;
  std::string dtype = "fp32";
  std::optional<int64_t> vocab, width, layers, heads, context;
  std::optional<int64_t> vocab_size, dim, window, negatives;
  bool no_resume = false;
};

const std::map<std::string, OptimizerKind> kOptimizers = {
    {"sgd", OptimizerKind::kSgd},         {"adam", OptimizerKind::kAdam},
    {"adamw", OptimizerKind::kAdamW},     {"adagrad", OptimizerKind::kAdagrad},
    {"rmsprop", OptimizerKind::kRmsProp},
};
const std::map<std::string, CheckpointKind> kKinds = {
    {"sharded", CheckpointKind::kSharded},
    {"full", CheckpointKind::kFull},
    {"local", CheckpointKind::kLocal},
};

const CLI::Validator kNotEmpty(
    [](std::string& path) {
      return path.empty() ? std::string("the path is empty; give one or drop the flag")
                          : std::string();
    },
    "", "path");
const CLI::Range kPositive(int64_t{1}, int64_t{1} << 40);
const CLI::Range kNotNegative(int64_t{0}, int64_t{1} << 40);
// Far above what a machine holds, far below where sizes made of several of them overflow.
const CLI::Range kBatch(int64_t{1}, int64_t{1} << 20);
const CLI::Range kLayers(int64_t{1}, int64_t{1000});
const CLI::Range kColumns(int64_t{1}, int64_t{1} << 16);
const CLI::Range kContext(int64_t{1}, int64_t{1} << 20);
const CLI::Range kWindow(int64_t{1}, int64_t{1'000'000});
const CLI::Range kNegatives(int64_t{1}, int64_t{10'000});
constexpr int64_t kMaxRows = int64_t{1} << 24;
// A checkpoint holds it as a signed integer. CLI11's own ranges let larger ones pass as that.
const CLI::Validator kSeed(
    [](std::string& text) {
      int64_t value = -1;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
      const bool fits = error == std::errc() && end == text.data() + text.size() && value >= 0;
      return fits ? std::string()
                  : fmt::format("{} is not an integer from 0 to {}", text,
                                std::numeric_limits<int64_t>::max());
    },
    "", "seed");

// CLI11's own ranges let NaN pass.
CLI::Validator finite_number(bool zero_is_fine, double most) {
  return CLI::Validator(
      [zero_is_fine, most](std::string& text) {
        double value = 0;
        const bool fits = CLI::detail::lexical_cast(text, value) && value <= most &&
                          (value > 0 || (zero_is_fine && value == 0));
        return fits ? std::string()
                    : fmt::format("{} is not a number {} 0 and at most {}", text,
                                  zero_is_fine ? "from" : "above", most);
      },
      "", "number");
}

// One of the names of `table`, without CLI11's habit of printing the enumerators' numbers.
template <typename Value>
CLI::Option* add_choice(CLI::App& app, const std::string& flag,
                        const std::map<std::string, Value>& table, std::function<void(Value)> take,
                        const std::string& help) {
  std::vector<std::string> names;
  names.reserve(table.size());
  for (const auto& [name, value] : table) names.push_back(name);
  return app
      .add_option_function<std::string>(
          flag, [&table, take](const std::string& name) { take(table.at(name)); }, help)
      ->check(CLI::IsMember(names));
}

void add_data_and_steps(CLI::App& app, Flags& flags) {
  TrainOptions& train = flags.train;
  app.add_option("--data", train.data,
                 "text: a file, or a folder whose files are read in sorted order")
      ->required();
  app.add_option("--steps", train.steps, "optimizer steps in all; a resumed run continues up to it")
      ->check(kPositive)
      ->capture_default_str();
  auto* batch =
      app.add_option("--batch", flags.batch, "samples a step over all ranks")->check(kBatch);
  app.add_option("--batch-per-rank", train.batch_per_rank,
                 "samples a step on each rank, instead of --batch")
      ->check(kBatch)
      ->excludes(batch);
  app.add_option("--seed", train.seed, "of initial values and sample order")
      ->check(kSeed)
      ->capture_default_str();
}

void add_numerics(CLI::App& app, Flags& flags) {
  TrainOptions& train = flags.train;
  app.add_option("--lr", flags.lr, "learning rate; given on a resume, it replaces the stored one")
      ->check(finite_number(false, 1e3));
  add_choice<OptimizerKind>(
      app, "--optimizer", kOptimizers, [&flags](OptimizerKind kind) { flags.optimizer = kind; },
      "stock LibTorch optimizer (gpt: adamw, wordvec: adagrad)");
  app.add_option("--clip", flags.clip, "largest 2-norm of the gradients; 0: no clipping")
      ->check(finite_number(true, 1e9));
  app.add_option("--dtype", flags.dtype, "fp32 or fp64")
      ->check(CLI::IsMember({"fp32", "fp64"}))
      ->capture_default_str();
  app.add_option("--threads", train.threads,
                 "threads of a rank (default: OMP_NUM_THREADS, else the cores shared out over the "
                 "host's ranks)")
      ->check(CLI::Range(1, 1024));
  app.add_flag("--plain", train.plain, "train the unwrapped module on one rank, as a reference");
}

void add_checkpoints(CLI::App& app, Flags& flags) {
  TrainOptions& train = flags.train;
  app.add_option("--checkpoint-dir", train.checkpoint_dir,
                 "folder of the run's checkpoints; training resumes from the newest complete one")
      ->check(kNotEmpty);
  app.add_option("--checkpoint-every", train.checkpoint_every,
                 "steps between checkpoints (0: only at the end)")
      ->check(kNotNegative)
      ->capture_default_str();
  app.add_option("--keep-last", train.keep_last, "how many checkpoints stay (0: all)")
      ->check(kNotNegative)
      ->capture_default_str();
  app.add_option("--keep-every", train.keep_every,
                 "checkpoints of steps that are a multiple of this stay for ever (0: none)")
      ->check(kNotNegative)
      ->capture_default_str();
  app.add_flag("--async-save", train.async_save, "train on while a checkpoint is written");
  add_choice<CheckpointKind>(
      app, "--kind", kKinds, [&train](CheckpointKind kind) { train.kind = kind; },
      "sharded (default), full or local");
  app.add_flag("--no-resume", flags.no_resume, "start at step 0 even if there is a checkpoint");
}

void add_output(CLI::App& app, Flags& flags) {
  TrainOptions& train = flags.train;
  app.add_option("--metrics", train.metrics, "file for one JSON line a step")->check(kNotEmpty);
  app.add_option("--save-final", train.save_final, "safetensors file for the final parameters")
      ->check(kNotEmpty);
  app.add_option("--log-every", train.log_every,
                 "steps between lines where the output is no terminal")
      ->check(kPositive)
      ->capture_default_str();
  app.add_flag("--bench", train.bench,
               "print median tokens/s and memory against the formula at the end");
}

CLI::App* add_gpt(CLI::App& app, Flags& flags) {
  CLI::App* gpt = app.add_subcommand("gpt", "byte-level GPT");
  gpt->add_option("--preset", flags.preset, "tiny, small, 30m or 124m")
      ->check(CLI::IsMember(names_of(gpt_presets())))
      ->capture_default_str();
  gpt->add_option("--vocab", flags.vocab, "embedding rows, at least 256")
      ->check(CLI::Range(int64_t{256}, kMaxRows));
  gpt->add_option("--width", flags.width, "channels")->check(kColumns);
  gpt->add_option("--layers", flags.layers, "blocks")->check(kLayers);
  gpt->add_option("--heads", flags.heads, "attention heads; divide the width")->check(kColumns);
  gpt->add_option("--context", flags.context, "bytes of a sample")->check(kContext);
  return gpt;
}

CLI::App* add_wordvec(CLI::App& app, Flags& flags) {
  CLI::App* wordvec =
      app.add_subcommand("wordvec", "word embeddings, skip-gram with negative sampling");
  wordvec->add_option("--preset", flags.preset, "tiny, small or large")
      ->check(CLI::IsMember(names_of(wordvec_presets())))
      ->capture_default_str();
  wordvec->add_option("--vocab-size", flags.vocab_size, "rows of each table: most frequent words")
      ->check(CLI::Range(int64_t{2}, kMaxRows));
  wordvec->add_option("--dim", flags.dim, "columns of each table")->check(kColumns);
  wordvec->add_option("--window", flags.window, "words on each side that count as context")
      ->check(kWindow);
  wordvec->add_option("--negatives", flags.negatives, "negative words a pair")->check(kNegatives);
  return wordvec;
}

template <typename Value>
void override_with(Value& value, const std::optional<Value>& given) {
  if (given) value = *given;
}

template <typename Model>
void take_preset(Flags& flags, const Preset<Model>& preset, OptimizerKind optimizer) {
  flags.train.batch = flags.batch.value_or(preset.batch);
  flags.train.lr = flags.lr.value_or(preset.lr);
  flags.train.lr_given = flags.lr.has_value();
  flags.train.optimizer = flags.optimizer.value_or(optimizer);
}

void apply_gpt(Flags& flags) {
  const Preset<GptOptions>& preset = find_preset(gpt_presets(), flags.preset);
  take_preset(flags, preset, OptimizerKind::kAdamW);
  flags.train.clip = flags.clip.value_or(1.0);
  GptOptions model = preset.model;
  override_with(model.vocab, flags.vocab);
  override_with(model.width, flags.width);
  override_with(model.layers, flags.layers);
  override_with(model.heads, flags.heads);
  override_with(model.context, flags.context);
  flags.train.model = model;
}

void apply_wordvec(Flags& flags) {
  const Preset<WordvecOptions>& preset = find_preset(wordvec_presets(), flags.preset);
  take_preset(flags, preset, OptimizerKind::kAdagrad);
  flags.train.clip = flags.clip.value_or(0.0);
  WordvecOptions model = preset.model;
  override_with(model.vocab_size, flags.vocab_size);
  override_with(model.dim, flags.dim);
  override_with(model.window, flags.window);
  override_with(model.negatives, flags.negatives);
  flags.train.model = model;
}

// Of the matrices, which are all that matters of a large model.
double parameter_count(const GptOptions& model) {
  const auto width = static_cast<double>(model.width);
  return 12 * width * width * static_cast<double>(model.layers) +
         width * static_cast<double>(model.vocab + model.context);
}

double parameter_count(const WordvecOptions& model) {
  return 2 * static_cast<double>(model.vocab_size) * static_cast<double>(model.dim);
}

// What no single flag can be blamed for; empty where everything fits.
std::string contradiction(const TrainOptions& train) {
  if (const auto* gpt = std::get_if<GptOptions>(&train.model);
      gpt && gpt->width % gpt->heads != 0) {
    return fmt::format("--heads {} does not divide --width {}", gpt->heads, gpt->width);
  }
  constexpr double kMostParameters = 1e12;
  const double parameters =
      std::visit([](const auto& model) { return parameter_count(model); }, train.model);
  if (parameters > kMostParameters) {
    return fmt::format("{} make a model of {:.1e} parameters; at most {:.0e} are supported",
                       std::holds_alternative<GptOptions>(train.model)
                           ? "--width, --layers, --vocab and --context"
                           : "--vocab-size and --dim",
                       parameters, kMostParameters);
  }
  if (train.plain && !train.checkpoint_dir.empty()) {
    return "--plain trains the unwrapped module and saves no checkpoints: drop --checkpoint-dir";
  }
  if (train.checkpoint_every > 0 && train.checkpoint_dir.empty()) {
    return "--checkpoint-every needs --checkpoint-dir";
  }
  return {};
}

constexpr const char* kFooter =
    "Exit codes: 0 complete; 1 failed; 2 bad flags, text or checkpoint of another run;\n"
    "75 interrupted (SIGINT, SIGTERM, SIGHUP), checkpoint saved; 76 a rank was lost, nothing "
    "saved;\n"
    "77 interrupted, nothing saved (no --checkpoint-dir).\n"
    "On several ranks: tessera-run --nproc N -- tessera-train ...";

}  // namespace

const char* TrainOptions::task_name() const {
  return std::holds_alternative<GptOptions>(model) ? "gpt" : "wordvec";
}

const char* to_string(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kSgd:
      return "sgd";
    case OptimizerKind::kAdam:
      return "adam";
    case OptimizerKind::kAdamW:
      return "adamw";
    case OptimizerKind::kAdagrad:
      return "adagrad";
    case OptimizerKind::kRmsProp:
      return "rmsprop";
  }
  return "?";
}

ParsedCommand parse_command(int argc, const char* const* argv) {
  CLI::App app("Trains a model with sharded parameters and crash-safe checkpoints.",
               "tessera-train");
  app.require_subcommand(1);
  app.footer(kFooter);
  // A script may append to flags that it was given.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  Flags flags;
  CLI::App* gpt = add_gpt(app, flags);
  CLI::App* wordvec = add_wordvec(app, flags);
  for (CLI::App* command : {gpt, wordvec}) {
    add_data_and_steps(*command, flags);
    add_numerics(*command, flags);
    add_checkpoints(*command, flags);
    add_output(*command, flags);
    command->footer(kFooter);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    const auto chosen = app.get_subcommands();
    return {std::nullopt, chosen.empty() ? app.help() : chosen.front()->help(), kComplete};
  } catch (const CLI::ParseError& error) {
    if (argc > 1 && argv[1][0] != '-' && !gpt->parsed() && !wordvec->parsed()) {
      return {
          std::nullopt,
          fmt::format("there is no command '{}': give gpt or wordvec (see tessera-train --help)",
                      argv[1]),
          kBadUsage};
    }
    return {std::nullopt, fmt::format("{} (see tessera-train --help)", error.what()), kBadUsage};
  }
  if (gpt->parsed()) {
    apply_gpt(flags);
  } else {
    apply_wordvec(flags);
  }
  flags.train.double_precision = flags.dtype == "fp64";
  flags.train.resume = !flags.no_resume;
  if (const std::string reason = contradiction(flags.train); !reason.empty()) {
    return {std::nullopt, reason, kBadUsage};
  }
  return {flags.train, {}, kComplete};
}

}  // namespace tessera::train
