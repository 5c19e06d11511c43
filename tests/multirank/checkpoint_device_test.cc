// Checkpoints of tensors on the Runtime's device (on a GPU: scripts/gpu_check.sh): every kind
// brings parameters and optimizer state back bit by bit, to where they were.
#include <stdlib.h>
#include <torch/torch.h>

#include <filesystem>

#include "support/multirank.h"
#include "tessera/checkpoint.h"
#include "tessera/error.h"

namespace tessera::test {
namespace {

using torch::Tensor;
using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<Tensor>)>;

struct NetImpl : torch::nn::Module {
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear a{nullptr}, b{nullptr};
  NetImpl() {
    table = register_module("table", torch::nn::Embedding(53, 12));
    a = register_module("a", torch::nn::Linear(12, 17));
    b = register_module("b", torch::nn::Linear(17, 53));
    register_buffer("seen", torch::zeros({3}, torch::kInt64));
  }
  Tensor forward(const Tensor& ids) {
    named_buffers()["seen"].add_(ids.numel());
    return b->forward(torch::tanh(a->forward(table->forward(ids)))).log_softmax(-1).pow(2).mean();
  }
};
TORCH_MODULE(Net);

struct TrainingRun {
  TrainingRun(const MakeOptimizer& make, uint64_t seed) {
    torch::manual_seed(seed);
    net = Net();
    net->to(device());
    sharded = std::make_unique<Sharded>(
        fully_shard(*net, runtime().mesh(),
                    FsdpOptions().unit_if(
                        [](const std::string& fqn, torch::nn::Module&) { return fqn == "a"; })));
    optimizer = make(net->parameters());
  }
  double step(int64_t number) {
    const Tensor ids = (torch::arange(30, torch::kInt64) * 7 + number * 13).remainder(53);
    const Tensor loss = net->forward(here(ids));
    optimizer->zero_grad();
    loss.backward();
    optimizer->step();
    return loss.item<double>();
  }
  Net net{nullptr};
  std::unique_ptr<Sharded> sharded;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

class SharedDirectory {
 public:
  SharedDirectory() {
    std::string mine;
    if (rank() == 0) {
      std::string pattern = testing::TempDir() + "/checkpoint_device_XXXXXX";
      if (::mkdtemp(pattern.data()) != nullptr) mine = pattern;
    }
    path_ = runtime().all_gather_bytes(mine)[0];
  }
  ~SharedDirectory() {
    runtime().barrier();
    std::error_code ignored;
    if (rank() == 0) std::filesystem::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

void expect_same_tensor(const Tensor& actual, const Tensor& expected, const std::string& what) {
  EXPECT_EQ(actual.device(), expected.device()) << what;
  EXPECT_EQ(actual.scalar_type(), expected.scalar_type()) << what;
  EXPECT_TRUE(torch::equal(actual, expected)) << what;
}

template <typename State, typename Check>
void compare_states(const TrainingRun& actual, const TrainingRun& expected, Check check) {
  const auto& mine = actual.sharded->parameters();
  const auto& other = expected.sharded->parameters();
  for (size_t i = 0; i < mine.size(); ++i) {
    const auto& have = *actual.optimizer->state().at(mine[i].leaf.unsafeGetTensorImpl());
    const auto& want = *expected.optimizer->state().at(other[i].leaf.unsafeGetTensorImpl());
    check(static_cast<const State&>(have), static_cast<const State&>(want), mine[i].fqn);
  }
}

class CheckpointDevice : public testing::TestWithParam<StateDictKind> {
 protected:
  void round_trip(const MakeOptimizer& make,
                  const std::function<void(const TrainingRun&, const TrainingRun&)>& check) {
    const CkptSpec spec = CkptSpec().kind(GetParam());
    SharedDirectory directory;
    TrainingRun saved(make, 1);
    for (int64_t step = 0; step < 3; ++step) saved.step(step);
    save_checkpoint(directory / "c", TrainState(*saved.sharded, *saved.optimizer), spec, 3,
                    SaveOptions().sync(false));
    TrainingRun loaded(make, 2);
    loaded.step(0);
    TrainState state(*loaded.sharded, *loaded.optimizer);
    load_checkpoint(directory / "c", state, spec);
    for (size_t i = 0; i < loaded.sharded->parameters().size(); ++i) {
      const ShardedParameter& parameter = loaded.sharded->parameters()[i];
      EXPECT_EQ(parameter.leaf.device(), device());
      expect_same_tensor(parameter.leaf, saved.sharded->parameters()[i].leaf, parameter.fqn);
    }
    expect_same_tensor(loaded.net->named_buffers()["seen"], saved.net->named_buffers()["seen"],
                       "seen");
    check(loaded, saved);
    for (int64_t step = 3; step < 6; ++step) {
      EXPECT_NEAR(loaded.step(step), saved.step(step), has_equal_bits() ? 0 : 1e-6)
          << "step " << step;
    }
  }
};

TEST_P(CheckpointDevice, Adam) {
  using torch::optim::AdamParamState;
  const MakeOptimizer make = [](std::vector<Tensor> parameters) {
    return std::make_unique<torch::optim::Adam>(std::move(parameters),
                                                torch::optim::AdamOptions(1e-2));
  };
  round_trip(make, [](const TrainingRun& loaded, const TrainingRun& saved) {
    compare_states<AdamParamState>(
        loaded, saved, [](const auto& have, const auto& want, const std::string& fqn) {
          EXPECT_EQ(have.step(), want.step()) << fqn;
          expect_same_tensor(have.exp_avg(), want.exp_avg(), fqn + " exp_avg");
          expect_same_tensor(have.exp_avg_sq(), want.exp_avg_sq(), fqn + " exp_avg_sq");
        });
  });
}

TEST_P(CheckpointDevice, Adagrad) {
  using torch::optim::AdagradParamState;
  const MakeOptimizer make = [](std::vector<Tensor> parameters) {
    return std::make_unique<torch::optim::Adagrad>(std::move(parameters),
                                                   torch::optim::AdagradOptions(1e-2));
  };
  round_trip(make, [](const TrainingRun& loaded, const TrainingRun& saved) {
    compare_states<AdagradParamState>(
        loaded, saved, [](const auto& have, const auto& want, const std::string& fqn) {
          EXPECT_EQ(have.step(), want.step()) << fqn;
          expect_same_tensor(have.sum(), want.sum(), fqn + " sum");
        });
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, CheckpointDevice,
                         testing::Values(StateDictKind::kSharded, StateDictKind::kFull,
                                         StateDictKind::kLocal));

// A model that was not moved is refused by name, not trained on another device than its inputs.
TEST(Device, ModelElsewhereIsRefused) {
  torch::nn::Linear model(3, 3);
  const Mesh elsewhere(runtime().mesh().communicator(), torch::kMeta);
  try {
    fully_shard(*model, elsewhere);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("call model->to(runtime.device()) first"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace tessera::test
