// A training program that resumes from whatever its directory holds; checkpoint_worlds_test.py
// starts it at changing world sizes. Arguments: directory, kind, optimizer, steps. Rank 0 prints
// one line "step loss" a step and "note ..." for what the load reported.
#include <torch/torch.h>

#include <cstdio>

#include "tessera/tessera.h"

namespace {

using torch::Tensor;

struct NetImpl : torch::nn::Module {
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear a{nullptr}, b{nullptr};
  NetImpl() {
    table = register_module("table", torch::nn::Embedding(53, 5));
    a = register_module("a", torch::nn::Linear(5, 7));
    b = register_module("b", torch::nn::Linear(7, 1));
    to(torch::kDouble);
  }
  Tensor forward(const Tensor& ids) {
    return b->forward(torch::tanh(a->forward(table->forward(ids)))).pow(2).mean();
  }
};
TORCH_MODULE(Net);

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name,
                                                        std::vector<Tensor> parameters) {
  using namespace torch::optim;
  if (name == "adam")
    return std::make_unique<Adam>(std::move(parameters), AdamOptions(1e-2).amsgrad(true));
  return std::make_unique<Adagrad>(std::move(parameters),
                                   AdagradOptions(1e-2).initial_accumulator_value(0.1));
}

void train(const tessera::Runtime& runtime, char** arguments) {
  const std::string kind = arguments[2];
  const auto spec = tessera::CkptSpec().kind(kind == "full"    ? tessera::StateDictKind::kFull
                                             : kind == "local" ? tessera::StateDictKind::kLocal
                                                               : tessera::StateDictKind::kSharded);
  torch::manual_seed(5);
  Net net;
  const tessera::Sharded sharded = tessera::fully_shard(*net, runtime.mesh());
  auto optimizer = make_optimizer(arguments[3], net->parameters());
  tessera::TrainState state(sharded, *optimizer);
  tessera::Checkpointer checkpointer(arguments[1], spec, runtime);
  const int64_t first = checkpointer.load_latest(state).value_or(0);
  if (runtime.rank() == 0)
    for (const std::string& note : checkpointer.last_report().notes)
      std::printf("note %s\n", note.c_str());
  const int64_t last = std::stoll(arguments[4]);
  for (int64_t step = first; step < last; ++step) {
    const Tensor all = (torch::arange(12, torch::kInt64) * 5 + step * 17).remainder(53);
    optimizer->zero_grad();
    const Tensor loss =
        net->forward(all.slice(0, runtime.rank(), c10::nullopt, runtime.world_size()));
    loss.backward();
    optimizer->step();
    const double mean = runtime.sum(loss.item<double>()) / runtime.world_size();
    if (runtime.rank() == 0) std::printf("%lld %.17g\n", static_cast<long long>(step), mean);
  }
  checkpointer.save(last, state);
}

}  // namespace

int main(int argc, char** argv) {
  torch::set_num_threads(1);
  if (argc != 5) return 2;
  try {
    train(tessera::Runtime::from_environment(), argv);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
