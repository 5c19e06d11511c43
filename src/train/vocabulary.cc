#include "vocabulary.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_map>

#include "mix.h"

namespace tessera::train {
namespace {

bool is_word_byte(unsigned char byte) {
  return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
         (byte >= '0' && byte <= '9') || byte == '_' || byte >= 0x80;
}

// Words in order of their first appearance, and the text as indices into them.
struct RawWords {
  std::vector<std::string_view> words;
  std::vector<int64_t> counts;
  std::vector<int32_t> tokens;
};

RawWords split_words(std::string_view text) {
  RawWords raw;
  std::unordered_map<std::string_view, int32_t> ids;
  size_t begin = 0;
  while (begin < text.size()) {
    if (!is_word_byte(static_cast<unsigned char>(text[begin]))) {
      ++begin;
      continue;
    }
    size_t end = begin + 1;
    while (end < text.size() && is_word_byte(static_cast<unsigned char>(text[end]))) ++end;
    const std::string_view word = text.substr(begin, end - begin);
    const auto [found, added] = ids.try_emplace(word, static_cast<int32_t>(raw.words.size()));
    if (added) {
      raw.words.push_back(word);
      raw.counts.push_back(0);
    }
    ++raw.counts[static_cast<size_t>(found->second)];
    raw.tokens.push_back(found->second);
    begin = end;
  }
  return raw;
}

}  // namespace

Vocabulary::Vocabulary(std::string_view text, int64_t limit) {
  const RawWords raw = split_words(text);
  std::vector<int32_t> by_rank(raw.words.size());
  std::iota(by_rank.begin(), by_rank.end(), 0);
  std::sort(by_rank.begin(), by_rank.end(), [&](int32_t a, int32_t b) {
    const int64_t count_a = raw.counts[static_cast<size_t>(a)];
    const int64_t count_b = raw.counts[static_cast<size_t>(b)];
    if (count_a != count_b) return count_a > count_b;
    return raw.words[static_cast<size_t>(a)] < raw.words[static_cast<size_t>(b)];
  });
  if (static_cast<int64_t>(by_rank.size()) > limit) by_rank.resize(static_cast<size_t>(limit));

  constexpr int32_t kOutside = -1;
  std::vector<int32_t> final_id(raw.words.size(), kOutside);
  for (size_t id = 0; id < by_rank.size(); ++id) {
    const auto raw_id = static_cast<size_t>(by_rank[id]);
    final_id[raw_id] = static_cast<int32_t>(id);
    words_.emplace_back(raw.words[raw_id]);
    counts_.push_back(raw.counts[raw_id]);
  }
  tokens_.reserve(raw.tokens.size());
  for (const int32_t token : raw.tokens) {
    const int32_t id = final_id[static_cast<size_t>(token)];
    if (id != kOutside) tokens_.push_back(id);
  }
}

NegativeSampler::NegativeSampler(const std::vector<int64_t>& counts) {
  cumulative_.reserve(counts.size());
  double total = 0;
  for (const int64_t count : counts) {
    total += std::pow(static_cast<double>(count), 0.75);
    cumulative_.push_back(total);
  }
}

int32_t NegativeSampler::draw(uint64_t seed, int64_t position, int k, int32_t positive) const {
  constexpr int kAttempts = 8;
  int32_t word = positive;
  for (int attempt = 0; attempt < kAttempts && word == positive; ++attempt) {
    const uint64_t bits =
        mix64(seed, static_cast<uint64_t>(position),
              static_cast<uint64_t>(k) * kAttempts + static_cast<uint64_t>(attempt));
    const double point = unit_interval(bits) * cumulative_.back();
    const auto found = std::upper_bound(cumulative_.begin(), cumulative_.end() - 1, point);
    word = static_cast<int32_t>(found - cumulative_.begin());
  }
  return word;
}

}  // namespace tessera::train
