// The states that the checkpoint benchmark saves: a GPT with AdamW after one step, or thousands of
// small tensors.
//
// Threads: the thread that trains. Cost: `keep_copies` holds the state a second time.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "tessera/tessera.h"

namespace tessera::train {
class GptImpl;
}

namespace tessera::bench {

class BenchState {
 public:
  // `workload` is "30m", "124m" or "many". [collective]
  BenchState(const std::string& workload, const Runtime& runtime);
  ~BenchState();

  TrainState& train_state() { return *state_; }
  size_t local_bytes() const;
  size_t tensors() const { return live().size(); }
  // Remembers this rank's values, writes others over them, and says whether they came back.
  void keep_copies();
  void poison();
  bool unchanged() const;
  // One step on this rank's samples.
  void train_step(int64_t step);

 private:
  // What a load may replace is looked up anew each time.
  std::vector<torch::Tensor> live() const;
  void make_gpt(const std::string& preset, const Runtime& runtime);
  void make_many(const Runtime& runtime);

  std::shared_ptr<train::GptImpl> gpt_;
  std::shared_ptr<torch::nn::Module> module_;
  std::unique_ptr<Sharded> sharded_;
  std::unique_ptr<torch::optim::AdamW> optimizer_;
  std::unique_ptr<TrainState> state_;
  std::vector<torch::Tensor> copies_;
  int64_t vocab_ = 0;
  int rank_ = 0;
};

}  // namespace tessera::bench
