// Skip-gram with negative sampling: a sample is one pair (word, neighbour within the window).
#pragma once

#include "task.h"
#include "text.h"
#include "vocabulary.h"
#include "wordvec_model.h"

namespace tessera::train {

class WordvecTask : public Task {
 public:
  // Throws UsageError where the text has too few words for one pair.
  WordvecTask(const WordvecOptions& options, const Text& text, uint64_t seed, torch::Device device,
              torch::Dtype dtype);

  torch::nn::Module& module() override { return *model_; }
  FsdpOptions fsdp_options() const override;
  int64_t sample_count() const override;
  int64_t tokens_per_sample() const override { return 1; }
  torch::Tensor mean_loss(const std::vector<SampleRef>& samples) override;
  std::vector<std::pair<std::string, ItemValue>> identity() const override;

 private:
  int64_t neighbours() const { return 2 * options_.window; }

  WordvecOptions options_;
  uint64_t seed_;
  std::string text_digest_;
  Vocabulary vocabulary_;
  NegativeSampler negatives_;
  torch::Device device_;
  Wordvec model_;
};

}  // namespace tessera::train
