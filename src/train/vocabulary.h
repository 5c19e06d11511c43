// Words of a text and their ids, for word embeddings.
//
// A word is a run of letters, digits, underscores and bytes above 127. Ids are given by falling
// count, then by name, so that the same text yields the same ids everywhere.
//
// Threads: immutable after construction. Cost: one pass over the text; 4 bytes a word of it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::train {

class Vocabulary {
 public:
  // Keeps the `limit` most frequent words.
  Vocabulary(std::string_view text, int64_t limit);

  int64_t size() const { return static_cast<int64_t>(words_.size()); }
  const std::vector<std::string>& words() const { return words_; }
  const std::vector<int64_t>& counts() const { return counts_; }
  // The text as ids; words outside the vocabulary are left out.
  const std::vector<int32_t>& tokens() const { return tokens_; }

 private:
  std::vector<std::string> words_;
  std::vector<int64_t> counts_;
  std::vector<int32_t> tokens_;
};

// Draws words with probability proportional to count^0.75, as a pure function of the key given.
class NegativeSampler {
 public:
  explicit NegativeSampler(const std::vector<int64_t>& counts);

  // The `k`-th negative of the sample at global `position`; avoids `positive` while the vocabulary
  // holds another word that is likely enough.
  int32_t draw(uint64_t seed, int64_t position, int k, int32_t positive) const;

 private:
  std::vector<double> cumulative_;
};

}  // namespace tessera::train
