#include "bench/bench_state.h"

#include <stdexcept>

#include "train/gpt_model.h"

namespace tessera::bench {

namespace {

// The presets of tessera-train.
train::GptOptions gpt_options(const std::string& preset) {
  if (preset == "30m") return {8192, 512, 8, 8, 256};
  if (preset == "124m") return {50257, 768, 12, 12, 1024};
  if (preset == "tiny") return {};
  throw std::invalid_argument("no workload '" + preset + "'");
}

constexpr int64_t kManyTensors = 10000;
constexpr int64_t kManyRowBytes = 1024;
constexpr int64_t kBatch = 4;
constexpr int64_t kContext = 128;

struct ManyImpl : torch::nn::Module {
  explicit ManyImpl(int64_t rows) {
    for (int64_t i = 0; i < kManyTensors; ++i)
      register_parameter(
          c10::str("tensor_", i),
          torch::arange(rows * kManyRowBytes / 4, torch::kFloat).view({rows, -1}) + i);
  }
};

}  // namespace

BenchState::BenchState(const std::string& workload, const Runtime& runtime)
    : rank_(runtime.rank()) {
  torch::manual_seed(3);
  if (workload == "many")
    make_many(runtime);
  else
    make_gpt(workload, runtime);
}

BenchState::~BenchState() = default;

void BenchState::make_gpt(const std::string& preset, const Runtime& runtime) {
  const train::GptOptions options = gpt_options(preset);
  vocab_ = options.vocab;
  gpt_ = std::make_shared<train::GptImpl>(options);
  module_ = gpt_;
  sharded_ = std::make_unique<Sharded>(fully_shard(*module_, runtime.mesh()));
  optimizer_ = std::make_unique<torch::optim::AdamW>(module_->parameters(),
                                                     torch::optim::AdamWOptions(6e-4));
  for (torch::Tensor& leaf : module_->parameters())
    leaf.mutable_grad() = leaf.detach() * 0.5 + 1e-3;
  optimizer_->step();
  optimizer_->zero_grad();
  state_ = std::make_unique<TrainState>(*sharded_, *optimizer_);
}

void BenchState::make_many(const Runtime& runtime) {
  // One row, that is 1 KiB, of each tensor on every rank.
  module_ = std::make_shared<ManyImpl>(runtime.world_size());
  sharded_ = std::make_unique<Sharded>(fully_shard(*module_, runtime.mesh()));
  state_ = std::make_unique<TrainState>(*sharded_);
}

std::vector<torch::Tensor> BenchState::live() const {
  std::vector<torch::Tensor> tensors;
  for (const ShardedParameter& parameter : sharded_->parameters()) {
    tensors.push_back(parameter.leaf.detach());
    if (!optimizer_) continue;
    auto& slot = optimizer_->state().at(parameter.leaf.unsafeGetTensorImpl());
    const auto& adam = static_cast<const torch::optim::AdamWParamState&>(*slot);
    tensors.push_back(adam.exp_avg());
    tensors.push_back(adam.exp_avg_sq());
  }
  return tensors;
}

size_t BenchState::local_bytes() const {
  size_t bytes = 0;
  for (const torch::Tensor& tensor : live()) bytes += tensor.nbytes();
  return bytes;
}

void BenchState::keep_copies() {
  copies_.clear();
  for (const torch::Tensor& tensor : live()) copies_.push_back(tensor.clone());
}

void BenchState::poison() {
  torch::NoGradGuard no_grad;
  for (torch::Tensor& tensor : live()) tensor.fill_(-1);
}

bool BenchState::unchanged() const {
  const std::vector<torch::Tensor> tensors = live();
  if (tensors.size() != copies_.size()) return false;
  for (size_t i = 0; i < tensors.size(); ++i)
    if (!torch::equal(tensors[i], copies_[i])) return false;
  return true;
}

void BenchState::train_step(int64_t step) {
  const auto tokens = torch::arange(kBatch * (kContext + 1), torch::kLong)
                          .mul(7919 + 2 * rank_)
                          .add(step * 104729)
                          .remainder(vocab_)
                          .view({kBatch, kContext + 1});
  const auto logits = gpt_->forward(tokens.narrow(1, 0, kContext));
  const auto loss = torch::nn::functional::cross_entropy(logits.flatten(0, 1),
                                                         tokens.narrow(1, 1, kContext).flatten());
  loss.backward();
  sharded_->clip_grad_norm(1.0);
  optimizer_->step();
  optimizer_->zero_grad();
}

}  // namespace tessera::bench
