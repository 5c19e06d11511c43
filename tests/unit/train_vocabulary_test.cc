#include "train/vocabulary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace tessera::train {
namespace {

using testing::ElementsAre;

TEST(Vocabulary, SortsByCountThenName) {
  const Vocabulary vocabulary("b a c a; b, a (d) c", 100);
  EXPECT_THAT(vocabulary.words(), ElementsAre("a", "b", "c", "d"));
  EXPECT_THAT(vocabulary.counts(), ElementsAre(3, 2, 2, 1));
  EXPECT_THAT(vocabulary.tokens(), ElementsAre(1, 0, 2, 0, 1, 0, 3, 2));
}

TEST(Vocabulary, KeepsTheMostFrequentAndDropsTheRestFromTheText) {
  const Vocabulary vocabulary("z z y x z y w", 2);
  EXPECT_THAT(vocabulary.words(), ElementsAre("z", "y"));
  EXPECT_THAT(vocabulary.tokens(), ElementsAre(0, 0, 1, 0, 1));
}

TEST(Vocabulary, OrderOfAppearanceDoesNotMatter) {
  EXPECT_EQ(Vocabulary("one two three one", 10).words(),
            Vocabulary("three one one two", 10).words());
}

TEST(Vocabulary, WordsAreLettersDigitsUnderscoresAndHighBytes) {
  const Vocabulary vocabulary("a_1 \xc3\xa9t\xc3\xa9-a_1", 10);
  EXPECT_THAT(vocabulary.words(), ElementsAre("a_1", "\xc3\xa9t\xc3\xa9"));
}

TEST(Vocabulary, TextWithoutWords) {
  const Vocabulary vocabulary(" .,;", 10);
  EXPECT_EQ(vocabulary.size(), 0);
  EXPECT_TRUE(vocabulary.tokens().empty());
}

TEST(NegativeSampler, IsAPureFunctionOfSeedPositionAndNumber) {
  const NegativeSampler sampler({100, 50, 20, 10});
  const NegativeSampler again({100, 50, 20, 10});
  std::vector<int32_t> forwards;
  std::vector<int32_t> backwards;
  for (int64_t position = 0; position < 50; ++position) {
    forwards.push_back(sampler.draw(9, position, 1, 0));
  }
  for (int64_t position = 49; position >= 0; --position) {
    backwards.insert(backwards.begin(), again.draw(9, position, 1, 0));
  }
  EXPECT_EQ(forwards, backwards);
}

TEST(NegativeSampler, FollowsCountsToThePowerOfThreeQuarters) {
  const std::vector<int64_t> counts = {10000, 625, 16};  // weights 1000, 125, 8
  const NegativeSampler sampler(counts);
  std::map<int32_t, int> drawn;
  constexpr int kDraws = 20000;
  for (int64_t position = 0; position < kDraws; ++position)
    ++drawn[sampler.draw(1, position, 0, -1)];
  EXPECT_NEAR(drawn[0] / double{kDraws}, 1000 / 1133.0, 0.01);
  EXPECT_NEAR(drawn[1] / double{kDraws}, 125 / 1133.0, 0.01);
  EXPECT_NEAR(drawn[2] / double{kDraws}, 8 / 1133.0, 0.004);
}

TEST(NegativeSampler, AvoidsThePositiveWord) {
  const NegativeSampler sampler({10, 10, 10});
  for (int64_t position = 0; position < 200; ++position) {
    EXPECT_NE(sampler.draw(1, position, 0, 1), 1);
  }
  EXPECT_EQ(NegativeSampler({5}).draw(1, 0, 0, 0), 0);
}

}  // namespace
}  // namespace tessera::train
