#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tessera/error.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/adagrad.h>
#include <torch/utils.h>

#include <cmath>
#include <map>
#include <numeric>

#include "train/gpt_task.h"
#include "train/optimizers.h"
#include "train/wordvec_task.h"

namespace tessera::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr GptOptions kSmallGpt{256, 32, 2, 4, 16};
constexpr WordvecOptions kSmallWordvec{50, 8, 2, 3};

Text text_of(std::string bytes) { return {std::move(bytes), "somewhere/text", 1, "digest"}; }

std::string repeated(const std::string& part, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += part;
  return all;
}

std::vector<SampleRef> first_samples(const Task& task, uint64_t seed, int64_t count) {
  return SampleOrder(seed, task.sample_count()).slice(0, count);
}

int64_t numel(torch::nn::Module& module) {
  int64_t total = 0;
  for (const torch::Tensor& parameter : module.parameters()) total += parameter.numel();
  return total;
}

TEST(Gpt, HasTheParametersOfGpt2) {
  // 12 * width^2 + 13 * width a block, embeddings, final norm; the output is tied.
  Gpt model(kSmallGpt);
  const int64_t width = kSmallGpt.width;
  EXPECT_EQ(numel(*model), 2 * (12 * width * width + 13 * width) + (256 + 16) * width + 2 * width);
}

TEST(Gpt, LaterTokensDoNotChangeEarlierLogits) {
  torch::manual_seed(1);
  Gpt model(kSmallGpt);
  const torch::Tensor tokens = torch::randint(0, 256, {2, 16}, torch::kInt64);
  torch::Tensor changed = tokens.clone();
  changed.narrow(1, 10, 6).fill_(7);
  const torch::Tensor before = model->forward(tokens);
  const torch::Tensor after = model->forward(changed);
  EXPECT_TRUE(torch::allclose(before.narrow(1, 0, 10), after.narrow(1, 0, 10)));
  EXPECT_FALSE(torch::allclose(before.narrow(1, 10, 6), after.narrow(1, 10, 6)));
}

TEST(GptTask, SampleIsAWindowAndTheByteAfterIt) {
  std::string bytes(16 * 3 + 1, '\0');
  std::iota(bytes.begin(), bytes.end(), static_cast<char>(200));
  torch::manual_seed(1);
  GptTask task(kSmallGpt, text_of(bytes), torch::kCPU, torch::kFloat32);
  ASSERT_EQ(task.sample_count(), 3);
  const torch::Tensor window =
      torch::arange(200 + 2 * 16, 200 + 3 * 16 + 1, torch::kInt64).remainder(256).unsqueeze(0);
  auto& model = dynamic_cast<GptImpl&>(task.module());
  const torch::Tensor expected = torch::nn::functional::cross_entropy(
      model.forward(window.narrow(1, 0, 16)).squeeze(0), window.narrow(1, 1, 16).squeeze(0));
  EXPECT_EQ(task.mean_loss({{0, 2}}).item<float>(), expected.item<float>());
}

TEST(GptTask, FirstLossIsThatOfGuessing) {
  torch::manual_seed(1);
  GptTask task(kSmallGpt, text_of(repeated("the quick brown fox ", 50)), torch::kCPU,
               torch::kFloat32);
  EXPECT_NEAR(task.mean_loss(first_samples(task, 1, 8)).item<double>(), std::log(256.0), 0.2);
}

TEST(GptTask, MeanOverABatchIsTheWeightedMeanOfItsParts) {
  torch::manual_seed(1);
  GptTask task(kSmallGpt, text_of(repeated("the quick brown fox ", 50)), torch::kCPU,
               torch::kFloat64);
  const std::vector<SampleRef> samples = first_samples(task, 1, 7);
  const double whole = task.mean_loss(samples).item<double>();
  const double first = task.mean_loss({samples.begin(), samples.begin() + 3}).item<double>();
  const double second = task.mean_loss({samples.begin() + 3, samples.end()}).item<double>();
  EXPECT_NEAR(whole, (3 * first + 4 * second) / 7, 1e-12);
}

TEST(GptTask, TextShorterThanASampleNamesThePath) {
  const auto build = [](size_t bytes) {
    GptTask(kSmallGpt, text_of(std::string(bytes, 'x')), torch::kCPU, torch::kFloat32);
  };
  EXPECT_THAT([&] { build(16); }, ThrowsMessage<UsageError>(AllOf(HasSubstr("somewhere/text"),
                                                                  HasSubstr("--context 16"))));
  EXPECT_NO_THROW(build(17));
}

double train(Task& task, OptimizerKind kind, double lr, int64_t batch, int steps) {
  const auto optimizer = make_optimizer(kind, lr, task.module().parameters());
  const SampleOrder order(1, task.sample_count());
  double last = 0;
  for (int step = 0; step < steps; ++step) {
    const torch::Tensor loss = task.mean_loss(order.slice(step * batch, (step + 1) * batch));
    loss.backward();
    optimizer->step();
    optimizer->zero_grad();
    last = loss.item<double>();
  }
  return last;
}

TEST(GptTask, LearnsARepeatedSentence) {
  torch::manual_seed(1);
  GptTask task(kSmallGpt, text_of(repeated("the quick brown fox ", 50)), torch::kCPU,
               torch::kFloat32);
  EXPECT_LT(train(task, OptimizerKind::kAdamW, 3e-3, 8, 60), 1.0);
}

TEST(GptTask, SeedDecidesTheInitialValues) {
  const auto values = [](uint64_t seed) {
    torch::manual_seed(seed);
    return Gpt(kSmallGpt)->parameters();
  };
  const auto first = values(3);
  const auto again = values(3);
  for (size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(torch::equal(first[i], again[i]));
  EXPECT_FALSE(torch::equal(first[0], values(4)[0]));
}

TEST(WordvecTask, SamplesArePairsWithinTheWindow) {
  // Window 1: words 1..3 of 5 are centres, each with the word before and the word after it.
  const WordvecOptions options{10, 4, 1, 1};
  torch::manual_seed(1);
  WordvecTask task(options, text_of("e d c b a"), 1, torch::kCPU, torch::kFloat64);
  ASSERT_EQ(task.sample_count(), 6);
  // Scores are zero at first, as the context table is: only the rows that a sample holds get
  // gradients, which shows what was looked up. Ids are alphabetical here.
  const auto touched = [&](int64_t index) {
    task.module().zero_grad();
    task.mean_loss({{0, index}}).backward();
    return task.module().parameters()[1].grad().abs().sum(1);
  };
  const torch::Tensor before = touched(0);  // centre d, neighbour e
  const torch::Tensor after = touched(5);   // centre b, neighbour a
  EXPECT_GT(before[4].item<double>(), 0);
  EXPECT_GT(after[0].item<double>(), 0);
  EXPECT_EQ(before.count_nonzero().item<int64_t>(), 2);
  EXPECT_EQ(after.count_nonzero().item<int64_t>(), 2);
}

TEST(WordvecTask, FirstLossIsThatOfGuessing) {
  torch::manual_seed(1);
  WordvecTask task(kSmallWordvec, text_of(repeated("a b c d e f ", 20)), 1, torch::kCPU,
                   torch::kFloat64);
  EXPECT_NEAR(task.mean_loss(first_samples(task, 1, 5)).item<double>(), 4 * std::log(2.0), 1e-12);
}

TEST(WordvecTask, LossOfASampleDoesNotDependOnItsBatch) {
  torch::manual_seed(1);
  WordvecTask task(kSmallWordvec, text_of(repeated("a b c d e f ", 20)), 1, torch::kCPU,
                   torch::kFloat64);
  train(task, OptimizerKind::kAdagrad, 0.5, 16, 3);
  const std::vector<SampleRef> samples = first_samples(task, 1, 6);
  double sum = 0;
  for (const SampleRef& sample : samples) sum += task.mean_loss({sample}).item<double>();
  EXPECT_NEAR(task.mean_loss(samples).item<double>(), sum / 6, 1e-12);
}

TEST(WordvecTask, LearnsWithAdagrad) {
  torch::manual_seed(1);
  WordvecTask task(kSmallWordvec, text_of(repeated("a b c d e f g h ", 50)), 1, torch::kCPU,
                   torch::kFloat32);
  EXPECT_LT(train(task, OptimizerKind::kAdagrad, 0.2, 64, 60), 2.3);
}

TEST(WordvecTask, TextWithTooFewWordsNamesThePath) {
  const auto build = [](const std::string& bytes) {
    WordvecTask(kSmallWordvec, text_of(bytes), 1, torch::kCPU, torch::kFloat32);
  };
  EXPECT_THAT([&] { build("a b c d"); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("somewhere/text"), HasSubstr("4 words"))));
  EXPECT_THAT([&] { build("a a a a a a a"); }, ThrowsMessage<UsageError>(HasSubstr("1 different")));
  EXPECT_THAT([&] { build("...."); }, ThrowsMessage<UsageError>(HasSubstr("0 words")));
  EXPECT_NO_THROW(build("a b c d e"));
}

TEST(MakeOptimizer, EveryKindTrains) {
  for (const auto kind : {OptimizerKind::kSgd, OptimizerKind::kAdam, OptimizerKind::kAdamW,
                          OptimizerKind::kAdagrad, OptimizerKind::kRmsProp}) {
    torch::manual_seed(1);
    WordvecTask task(kSmallWordvec, text_of(repeated("a b c d e f ", 20)), 1, torch::kCPU,
                     torch::kFloat64);
    const torch::Tensor before = task.module().parameters()[1].detach().clone();
    train(task, kind, 0.1, 8, 1);
    EXPECT_FALSE(torch::equal(before, task.module().parameters()[1])) << to_string(kind);
  }
}

TEST(SetLearningRate, ReachesEveryGroup) {
  auto optimizer = make_optimizer(OptimizerKind::kAdagrad, 0.1, {torch::zeros(1)});
  optimizer->add_param_group(torch::optim::OptimizerParamGroup({torch::zeros(2)}));
  set_learning_rate(*optimizer, 0.25);
  for (const auto& group : optimizer->param_groups()) EXPECT_EQ(group.options().get_lr(), 0.25);
}

}  // namespace
}  // namespace tessera::train
