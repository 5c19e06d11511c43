#include "wordvec_task.h"

#include <c10/util/StringUtil.h>
#include <tessera/error.h>

namespace tessera::train {

WordvecTask::WordvecTask(const WordvecOptions& options, const Text& text, uint64_t seed,
                         torch::Device device, torch::Dtype dtype)
    : options_(options),
      seed_(seed),
      text_digest_(text.digest),
      vocabulary_(text.bytes, options.vocab_size),
      negatives_(vocabulary_.counts()),
      device_(device),
      model_(options) {
  if (vocabulary_.size() < 2 || sample_count() < 1) {
    throw UsageError(c10::str("--data ", text.source, ": ", vocabulary_.tokens().size(), " words (",
                              vocabulary_.size(), " different ones) are too few for --window ",
                              options_.window));
  }
  model_->to(device, dtype);
}

FsdpOptions WordvecTask::fsdp_options() const {
  return FsdpOptions().unit<torch::nn::EmbeddingImpl>();
}

// Words nearer to an end of the text than the window are neighbours only, so that every sample
// counts the same.
int64_t WordvecTask::sample_count() const {
  return (static_cast<int64_t>(vocabulary_.tokens().size()) - neighbours()) * neighbours();
}

torch::Tensor WordvecTask::mean_loss(const std::vector<SampleRef>& samples) {
  const auto rows = static_cast<int64_t>(samples.size());
  const int64_t columns = 1 + options_.negatives;
  const torch::Tensor centers = torch::empty({rows}, torch::kInt64);
  const torch::Tensor contexts = torch::empty({rows, columns}, torch::kInt64);
  int64_t* center = centers.data_ptr<int64_t>();
  int64_t* context = contexts.data_ptr<int64_t>();
  const std::vector<int32_t>& tokens = vocabulary_.tokens();
  for (const SampleRef& sample : samples) {
    const int64_t at = options_.window + sample.index / neighbours();
    const int64_t neighbour = sample.index % neighbours();
    const int64_t offset = neighbour - options_.window + (neighbour < options_.window ? 0 : 1);
    const int32_t positive = tokens[static_cast<size_t>(at + offset)];
    *center++ = tokens[static_cast<size_t>(at)];
    *context++ = positive;
    for (int k = 0; k < options_.negatives; ++k) {
      *context++ = negatives_.draw(seed_, sample.position, k, positive);
    }
  }
  const torch::Tensor scores = model_->forward(centers.to(device_), contexts.to(device_));
  const torch::Tensor positive = scores.narrow(1, 0, 1);
  const torch::Tensor negative = scores.narrow(1, 1, options_.negatives);
  const torch::Tensor likelihood =
      torch::log_sigmoid(positive).sum() + torch::log_sigmoid(torch::neg(negative)).sum();
  return torch::neg(likelihood) / rows;
}

std::vector<std::pair<std::string, ItemValue>> WordvecTask::identity() const {
  return {{"task", std::string("wordvec")},   {"text", text_digest_},
          {"vocabulary", vocabulary_.size()}, {"window", options_.window},
          {"negatives", options_.negatives},  {"samples", sample_count()}};
}

}  // namespace tessera::train
