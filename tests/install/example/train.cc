#include <tessera/tessera.h>
#include <torch/torch.h>

#include <iostream>

int main() {
  tessera::Runtime runtime = tessera::Runtime::from_environment();  // alone without a launcher
  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(32, 256), torch::nn::Tanh(),
                              torch::nn::Linear(256, 1));
  tessera::Sharded sharded = tessera::fully_shard(*model, runtime.mesh());
  torch::optim::Adagrad optimizer(model->parameters(), 1e-2);  // after wrapping: this rank's rows

  const tessera::CkptSpec spec;  // sharded files by default; one value for save and load
  tessera::Checkpointer checkpointer("runs/example", spec, runtime);
  tessera::TrainState state(sharded, optimizer);
  int64_t step = checkpointer.load_latest(state).value_or(0);  // saved on any number of ranks
  for (; step < 60; ++step) {
    torch::manual_seed(step * runtime.world_size() + runtime.rank());  // this rank's samples
    torch::Tensor input = torch::randn({64, 32});
    torch::Tensor loss = torch::mse_loss(model->forward(input), input.sum(1, true));
    loss.backward();  // gradients are averaged over the ranks
    sharded.clip_grad_norm(1.0);
    optimizer.step();
    optimizer.zero_grad();
    if ((step + 1) % 20 == 0) checkpointer.save(step + 1, state);
    if (runtime.rank() == 0) std::cout << "step " << step + 1 << " loss " << loss.item() << "\n";
  }
}
