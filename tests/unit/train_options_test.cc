#include "train/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace tessera::train {
namespace {

using testing::HasSubstr;

ParsedCommand parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "tessera-train");
  return parse_command(static_cast<int>(arguments.size()), arguments.data());
}

TEST(ParseCommand, PresetFillsWhatFlagsLeaveOpen) {
  const ParsedCommand parsed = parse({"gpt", "--data", "x", "--preset", "30m", "--context", "128"});
  ASSERT_TRUE(parsed.options) << parsed.text;
  const auto& model = std::get<GptOptions>(parsed.options->model);
  EXPECT_EQ(model.vocab, 8192);
  EXPECT_EQ(model.width, 512);
  EXPECT_EQ(model.layers, 8);
  EXPECT_EQ(model.heads, 8);
  EXPECT_EQ(model.context, 128);
  EXPECT_EQ(parsed.options->optimizer, OptimizerKind::kAdamW);
  EXPECT_FALSE(parsed.options->lr_given);
}

TEST(ParseCommand, WordvecDefaultsToAdagrad) {
  const ParsedCommand parsed =
      parse({"wordvec", "--data", "x", "--vocab-size", "77", "--lr", "0.5", "--dtype", "fp64"});
  ASSERT_TRUE(parsed.options) << parsed.text;
  EXPECT_EQ(std::get<WordvecOptions>(parsed.options->model).vocab_size, 77);
  EXPECT_EQ(parsed.options->optimizer, OptimizerKind::kAdagrad);
  EXPECT_EQ(parsed.options->lr, 0.5);
  EXPECT_TRUE(parsed.options->lr_given);
  EXPECT_TRUE(parsed.options->double_precision);
  EXPECT_STREQ(parsed.options->task_name(), "wordvec");
}

TEST(ParseCommand, EveryFlag) {
  const ParsedCommand parsed = parse({"gpt",
                                      "--data",
                                      "x",
                                      "--steps",
                                      "7",
                                      "--batch-per-rank",
                                      "3",
                                      "--seed",
                                      "9",
                                      "--optimizer",
                                      "rmsprop",
                                      "--clip",
                                      "0.5",
                                      "--checkpoint-dir",
                                      "d",
                                      "--checkpoint-every",
                                      "2",
                                      "--keep-last",
                                      "0",
                                      "--kind",
                                      "full",
                                      "--metrics",
                                      "m",
                                      "--no-resume",
                                      "--threads",
                                      "2",
                                      "--save-final",
                                      "f",
                                      "--bench",
                                      "--log-every",
                                      "5"});
  ASSERT_TRUE(parsed.options) << parsed.text;
  const TrainOptions& options = *parsed.options;
  EXPECT_EQ(options.steps, 7);
  EXPECT_EQ(options.batch_per_rank, 3);
  EXPECT_EQ(options.seed, 9u);
  EXPECT_EQ(options.optimizer, OptimizerKind::kRmsProp);
  EXPECT_EQ(options.clip, 0.5);
  EXPECT_EQ(options.checkpoint_dir, "d");
  EXPECT_EQ(options.checkpoint_every, 2);
  EXPECT_EQ(options.keep_last, 0);
  EXPECT_EQ(options.kind, CheckpointKind::kFull);
  EXPECT_EQ(options.metrics, "m");
  EXPECT_FALSE(options.resume);
  EXPECT_EQ(options.threads, 2);
  EXPECT_EQ(options.save_final, "f");
  EXPECT_TRUE(options.bench);
  EXPECT_EQ(options.log_every, 5);
}

TEST(ParseCommand, LastOfARepeatedFlagCounts) {
  const ParsedCommand parsed =
      parse({"gpt",     "--data",      "x",      "--data",   "y",      "--batch",  "4",
             "--batch", "5",           "--kind", "full",     "--kind", "local",    "--optimizer",
             "sgd",     "--optimizer", "adam",   "--preset", "30m",    "--preset", "tiny"});
  ASSERT_TRUE(parsed.options) << parsed.text;
  EXPECT_EQ(parsed.options->data, "y");
  EXPECT_EQ(parsed.options->batch, 5);
  EXPECT_EQ(parsed.options->kind, CheckpointKind::kLocal);
  EXPECT_EQ(parsed.options->optimizer, OptimizerKind::kAdam);
  EXPECT_EQ(std::get<GptOptions>(parsed.options->model).width, 64);
}

struct BadCase {
  std::vector<const char*> arguments;
  const char* said;
};

TEST(ParseCommand, BadInputIsRefusedWithTheReason) {
  const std::vector<BadCase> cases = {
      {{}, "subcommand"},
      {{"gpt", "--data", "x", "--colour", "red"}, "--colour"},
      {{"gpt"}, "--data"},
      {{"train"}, "no command 'train'"},
      {{"", "--data", "x"}, "no command ''"},
      {{"gpt", "--data", "x", "--seed", "-1"}, "--seed"},
      {{"gpt", "--data", "x", "--seed", "18446744073709551615"}, "--seed"},
      {{"gpt", "--data", "x", "--seed", "99999999999999999999"}, "--seed"},
      {{"gpt", "--data", "x", "--lr", "nan"}, "--lr"},
      {{"gpt", "--data", "x", "--lr", "inf"}, "--lr"},
      {{"gpt", "--data", "x", "--lr", "0"}, "--lr"},
      {{"gpt", "--data", "x", "--lr", "-1"}, "--lr"},
      {{"gpt", "--data", "x", "--lr", "1e300"}, "--lr"},
      {{"gpt", "--data", "x", "--clip", "nan"}, "--clip"},
      {{"gpt", "--data", "x", "--clip", "inf"}, "--clip"},
      {{"gpt", "--data", "x", "--clip", "-1"}, "--clip"},
      {{"gpt", "--data", "x", "--batch", "1099511627776"}, "--batch"},
      {{"gpt", "--data", "x", "--batch-per-rank", "1099511627776"}, "--batch-per-rank"},
      {{"gpt", "--data", "x", "--layers", "1000000"}, "--layers"},
      {{"gpt", "--data", "x", "--width", "1099511627776"}, "--width"},
      {{"gpt", "--data", "x", "--heads", "1099511627776"}, "--heads"},
      {{"gpt", "--data", "x", "--context", "1099511627776"}, "--context"},
      {{"gpt", "--data", "x", "--vocab", "2147483648"}, "--vocab"},
      {{"gpt", "--data", "x", "--width", "65536", "--layers", "1000"}, "--width, --layers"},
      {{"wordvec", "--data", "x", "--window", "1099511627776"}, "--window"},
      {{"wordvec", "--data", "x", "--negatives", "1099511627776"}, "--negatives"},
      {{"wordvec", "--data", "x", "--vocab-size", "2147483648"}, "--vocab-size"},
      {{"wordvec", "--data", "x", "--dim", "1099511627776"}, "--dim"},
      {{"wordvec", "--data", "x", "--vocab-size", "16777216", "--dim", "65536"}, "--vocab-size"},
      {{"gpt", "--data", "x", "--steps", "0"}, "--steps"},
      {{"gpt", "--data", "x", "--steps", "many"}, "many"},
      {{"gpt", "--data", "x", "--preset", "huge"}, "huge"},
      {{"gpt", "--data", "x", "--vocab", "255"}, "--vocab"},
      {{"gpt", "--data", "x", "--dim", "8"}, "--dim"},
      {{"wordvec", "--data", "x", "--layers", "8"}, "--layers"},
      {{"gpt", "--data", "x", "--optimizer", "lbfgs"}, "lbfgs"},
      {{"gpt", "--data", "x", "--kind", "both"}, "both"},
      {{"gpt", "--data", "x", "--batch", "4", "--batch-per-rank", "4"}, "--batch"},
      {{"gpt", "--data", "x", "--width", "64", "--heads", "5"}, "--heads 5"},
      {{"gpt", "--data", "x", "--plain", "--checkpoint-dir", "d"}, "--checkpoint-dir"},
      {{"gpt", "--data", "x", "--checkpoint-every", "5"}, "--checkpoint-dir"},
      {{"gpt", "--data", "x", "--checkpoint-dir", ""}, "--checkpoint-dir"},
      {{"gpt", "--data", "x", "--checkpoint-dir="}, "--checkpoint-dir"},
      {{"gpt", "--data", "x", "--save-final", ""}, "--save-final"},
      {{"gpt", "--data", "x", "--metrics", ""}, "--metrics"},
  };
  for (const BadCase& bad : cases) {
    const ParsedCommand parsed = parse(bad.arguments);
    EXPECT_FALSE(parsed.options);
    EXPECT_EQ(parsed.exit_code, kBadUsage);
    EXPECT_THAT(parsed.text, HasSubstr(bad.said));
    EXPECT_EQ(parsed.text.find('\n'), std::string::npos) << parsed.text;
  }
}

TEST(ParseCommand, EdgesOfTheRanges) {
  const ParsedCommand parsed =
      parse({"wordvec", "--data", "x", "--seed", "9223372036854775807", "--clip", "0", "--lr",
             "1e-8", "--window", "1000000", "--batch", "1048576"});
  ASSERT_TRUE(parsed.options) << parsed.text;
  EXPECT_EQ(parsed.options->seed, 9223372036854775807u);
  EXPECT_EQ(parsed.options->clip, 0);
  EXPECT_EQ(parsed.options->lr, 1e-8);
}

TEST(ParseCommand, HelpNamesExitCodes) {
  const ParsedCommand parsed = parse({"gpt", "--help"});
  EXPECT_FALSE(parsed.options);
  EXPECT_EQ(parsed.exit_code, kComplete);
  EXPECT_THAT(parsed.text, HasSubstr("--checkpoint-every"));
  EXPECT_THAT(parsed.text, HasSubstr("75 interrupted"));
}

}  // namespace
}  // namespace tessera::train
