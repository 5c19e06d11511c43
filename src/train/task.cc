#include "task.h"

#include <torch/utils.h>

#include <utility>

#include "gpt_task.h"
#include "wordvec_task.h"

namespace tessera::train {

std::unique_ptr<Task> make_task(const TrainOptions& options, torch::Device device) {
  Text text = load_text(options.data);
  const torch::Dtype dtype = options.double_precision ? torch::kFloat64 : torch::kFloat32;
  torch::manual_seed(options.seed);
  if (const auto* gpt = std::get_if<GptOptions>(&options.model)) {
    return std::make_unique<GptTask>(*gpt, std::move(text), device, dtype);
  }
  const auto& wordvec = std::get<WordvecOptions>(options.model);
  return std::make_unique<WordvecTask>(wordvec, text, options.seed, device, dtype);
}

}  // namespace tessera::train
