// Background saves of a sharded model in real processes: whatever training does next, the files are
// those of a synchronous save at the moment of the call.
#include <gmock/gmock.h>

#include <fstream>
#include <map>

#include "multirank/checkpoint_run.h"
#include "tessera/error.h"

namespace tessera::test {
namespace {

constexpr int64_t kWidth = 256;

std::map<std::string, std::string> contents(const std::string& path) {
  std::map<std::string, std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    std::ifstream in(entry.path(), std::ios::binary);
    out[entry.path().filename()] = std::string(std::istreambuf_iterator<char>(in), {});
  }
  return out;
}

void expect_same_checkpoints(const std::string& actual, const std::string& expected) {
  const auto have = contents(actual), want = contents(expected);
  EXPECT_GE(want.size(), 3U);
  EXPECT_EQ(have.size(), want.size());
  for (const auto& [name, bytes] : want)
    EXPECT_TRUE(have.contains(name) && have.at(name) == bytes) << name << " differs";
}

struct Next {
  const char* name;
  MakeOptimizer make;
  std::function<void(ShardedRun&)> happens;
};

std::vector<Next> nexts() {
  using namespace torch::optim;
  const MakeOptimizer adam = make_with<Adam>(AdamOptions(1e-2));
  const auto gradients = [](ShardedRun& run) { run.backward(2); };
  return {
      {"TrainingAdam", adam,
       [](ShardedRun& run) {
         for (int64_t step = 2; step < 5; ++step) run.step(step);
       }},
      {"TrainingSgd", make_with<SGD>(SGDOptions(0.05)),
       [](ShardedRun& run) {
         for (int64_t step = 2; step < 5; ++step) run.step(step);
       }},
      {"BatchNormInForwardOnly", adam,
       [](ShardedRun& run) { run.net->forward(torch::arange(53, torch::kInt64)); }},
      {"AStepWithoutABackward", adam, [](ShardedRun& run) { run.optimizer->step(); }},
      {"ClampOfLeaves", adam,
       [](ShardedRun& run) {
         torch::NoGradGuard no_grad;
         for (Tensor& leaf : run.net->parameters())
           if (leaf.is_floating_point()) leaf.clamp_(-0.001, 0.001);
       }},
      {"EmaSwap", adam,
       [](ShardedRun& run) {
         torch::NoGradGuard no_grad;
         for (Tensor& leaf : run.net->parameters()) leaf.copy_(torch::full_like(leaf, 2));
       }},
      {"FusedAndForeach", adam,
       [=](ShardedRun& run) {
         gradients(run);
         torch::NoGradGuard no_grad;
         const Tensor leaf = run.net->a->named_parameters()["weight"];
         at::_foreach_mul_({leaf}, 0.5);
         at::_fused_sgd_({leaf}, {torch::ones_like(leaf)}, {}, 0.0, 0.0, 0.1, 0.0, false, false,
                         true, {}, {});
       }},
      {"GatheredWriteBack", adam,
       [](ShardedRun& run) {
         Gathered full = run.sharded->gather();
         torch::NoGradGuard no_grad;
         full["a.weight"].fill_(3);
         full.write_back();
       }},
      {"BeforeWriteAndRawPointers", adam,
       [](ShardedRun& run) {
         for (const ShardedParameter& parameter : run.sharded->parameters()) {
           if (parameter.fqn != "a.weight" || parameter.leaf.numel() == 0) continue;
           run.sharded->before_write(parameter.leaf);
           parameter.leaf.mutable_data_ptr<float>()[0] = 77;
         }
         run.sharded->gather();  // what writes, all ranks must close
       }},
  };
}

class CheckpointAsyncFsdp
    : public testing::TestWithParam<std::tuple<size_t, StateDictKind>> {};

TEST_P(CheckpointAsyncFsdp, BL62_HoldsTheValuesOfTheCall) {
  const auto [index, kind] = GetParam();
  const Next next = nexts()[index];
  const CkptSpec spec = CkptSpec().kind(kind);
  const auto options = CheckpointerOptions().save(SaveOptions().sync(false));
  SharedDirectory directory;
  ShardedRun run(next.make, 1, kWidth);
  for (int64_t step = 0; step < 2; ++step) run.step(step);
  TrainState state(*run.sharded, *run.optimizer);
  int64_t position = 11;
  state.item("position", [&] { return ItemValue(position); }, [](const ItemValue&) {});
  Checkpointer(directory / "sync", spec, runtime(), options).save(2, state);
  Checkpointer checkpointer(directory / "async", spec, runtime(), options);
  // From the second save on every buffer is in place and every tensor has its key.
  checkpointer.save_async(2, state);
  checkpointer.wait();
  runtime().barrier();
  if (rank() == 0) std::filesystem::remove_all(directory / "async");
  runtime().barrier();

  const AsyncSave save = checkpointer.save_async(2, state);
  position = 12;
  torch::rand({3});
  next.happens(run);
  EXPECT_EQ(save.committed().get(), directory / "async/step-00000002");
  save.staged().get();
  const SaveProgress progress = save.progress();
  EXPECT_EQ(progress.staged, progress.total);
  EXPECT_GE(progress.written, progress.total);
  checkpointer.wait();
  runtime().barrier();
  expect_same_checkpoints(directory / "async/step-00000002", directory / "sync/step-00000002");
}

std::string next_name(const testing::TestParamInfo<std::tuple<size_t, StateDictKind>>& info) {
  const bool full = std::get<1>(info.param) == StateDictKind::kFull;
  return std::string(nexts()[std::get<0>(info.param)].name) + (full ? "Full" : "Sharded");
}

INSTANTIATE_TEST_SUITE_P(All, CheckpointAsyncFsdp,
                         testing::Combine(testing::Range(size_t{0}, nexts().size()),
                                          testing::Values(StateDictKind::kSharded,
                                                          StateDictKind::kFull)),
                         next_name);

// Training with a save after every step gets the numbers of training without.
TEST(CheckpointAsyncFsdpMore, SavingChangesNoNumberAndEveryCheckpointLoads) {
  const MakeOptimizer make = make_with<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-2));
  SharedDirectory directory;
  std::vector<double> losses, saved_losses, resumed_losses;
  {
    ShardedRun plain(make, 1, kWidth);
    for (int64_t step = 0; step < 8; ++step) losses.push_back(plain.step(step));
  }
  ShardedRun run(make, 1, kWidth);
  Checkpointer checkpointer(
      directory.path(), {}, runtime(),
      CheckpointerOptions().keep_last(0).save(SaveOptions().sync(false)));
  TrainState state(*run.sharded, *run.optimizer);
  for (int64_t step = 0; step < 8; ++step) {
    saved_losses.push_back(run.step(step));
    checkpointer.save_async(step + 1, state);
  }
  checkpointer.wait();
  EXPECT_EQ(saved_losses, losses);
  for (const int64_t from : {1, 5, 7}) {
    ShardedRun resumed(make, 2, kWidth);
    TrainState target(*resumed.sharded, *resumed.optimizer);
    const std::string path = directory / ("step-0000000" + std::to_string(from));
    EXPECT_EQ(load_checkpoint(path, target, {}).step, from);
    resumed_losses.assign(losses.begin(), losses.begin() + from);
    for (int64_t step = from; step < 8; ++step) resumed_losses.push_back(resumed.step(step));
    EXPECT_EQ(resumed_losses, losses) << "from " << from;
  }
}

}  // namespace
}  // namespace tessera::test
