// Next-byte prediction: a sample is one window of `context` bytes of the text and the byte after
// it.
#pragma once

#include "gpt_model.h"
#include "task.h"
#include "text.h"

namespace tessera::train {

class GptTask : public Task {
 public:
  // Throws UsageError where the text is shorter than one window.
  GptTask(const GptOptions& options, Text text, torch::Device device, torch::Dtype dtype);

  torch::nn::Module& module() override { return *model_; }
  FsdpOptions fsdp_options() const override;
  int64_t sample_count() const override;
  int64_t tokens_per_sample() const override { return options_.context; }
  torch::Tensor mean_loss(const std::vector<SampleRef>& samples) override;
  std::vector<std::pair<std::string, ItemValue>> identity() const override;

 private:
  GptOptions options_;
  Text text_;
  torch::Device device_;
  Gpt model_;
};

}  // namespace tessera::train
