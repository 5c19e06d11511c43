#include "gpt_task.h"

#include <c10/util/StringUtil.h>
#include <tessera/error.h>
#include <torch/nn/functional/loss.h>

#include <utility>

namespace tessera::train {

GptTask::GptTask(const GptOptions& options, Text text, torch::Device device, torch::Dtype dtype)
    : options_(options), text_(std::move(text)), device_(device), model_(options) {
  if (sample_count() < 1) {
    throw UsageError(c10::str("--data ", text_.source, ": ", text_.bytes.size(),
                              " bytes of text are fewer than one sample needs (--context ",
                              options_.context, " and one more)"));
  }
  model_->to(device, dtype);
}

FsdpOptions GptTask::fsdp_options() const { return FsdpOptions().unit<BlockImpl>(); }

int64_t GptTask::sample_count() const {
  return (static_cast<int64_t>(text_.bytes.size()) - 1) / options_.context;
}

torch::Tensor GptTask::mean_loss(const std::vector<SampleRef>& samples) {
  const auto rows = static_cast<int64_t>(samples.size());
  const int64_t length = options_.context;
  const torch::Tensor windows = torch::empty({rows, length + 1}, torch::kInt64);
  int64_t* out = windows.data_ptr<int64_t>();
  for (const SampleRef& sample : samples) {
    const char* bytes = text_.bytes.data() + sample.index * length;
    for (int64_t i = 0; i <= length; ++i) *out++ = static_cast<unsigned char>(bytes[i]);
  }
  const torch::Tensor on_device = windows.to(device_);
  const torch::Tensor inputs = on_device.narrow(1, 0, length);
  const torch::Tensor targets = on_device.narrow(1, 1, length);
  const torch::Tensor logits = model_->forward(inputs);
  return torch::nn::functional::cross_entropy(logits.view({-1, options_.vocab}),
                                              targets.reshape({-1}));
}

std::vector<std::pair<std::string, ItemValue>> GptTask::identity() const {
  return {{"task", std::string("gpt")},
          {"text", text_.digest},
          {"context", options_.context},
          {"heads", options_.heads},
          {"samples", sample_count()}};
}

}  // namespace tessera::train
