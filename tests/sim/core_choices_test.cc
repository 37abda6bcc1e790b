// Goal: the promises of ChoiceSource: streams are independent, every deviation replays, 0 is the
// dull outcome. Method: draw by hand from small sources and compare; no world.
#include "sim/choices.h"

#include <gtest/gtest.h>

#include <vector>

#include "sim/config.h"

namespace weightlane::sim {
namespace {

constexpr StreamId kA = stream_of({1}, Subsystem::kData);
constexpr StreamId kB = stream_of({2}, Subsystem::kControl);

TEST(Choices, SameSeedSameDraws) {
  ChoiceSource one(7);
  ChoiceSource two(7);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(one.choose(kA, "x", 1000), two.choose(kA, "x", 1000));
    EXPECT_EQ(one.value(kB), two.value(kB));
  }
}

TEST(Choices, OneMoreDrawInOneStreamChangesNothingInAnother) {
  ChoiceSource one(7);
  ChoiceSource two(7);
  for (int i = 0; i < 10; ++i) one.choose(kA, "x", 5);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(one.choose(kB, "y", 1000), two.choose(kB, "y", 1000));
}

TEST(Choices, StaysBelowN) {
  ChoiceSource source(3);
  std::vector<int> seen(5, 0);
  for (int i = 0; i < 5000; ++i) ++seen.at(source.choose(kA, "x", 5));
  for (const int count : seen) EXPECT_GT(count, 800);
}

TEST(Choices, DeviationsReplayWithoutTheSeed) {
  ChoiceSource first(11);
  first.set_recording(true);
  std::vector<int64_t> drawn;
  for (int i = 0; i < 200; ++i) {
    drawn.push_back(first.choose(kA, "x", 3));
    drawn.push_back(first.chance(kB, "y", 300'000) ? 1 : 0);
    drawn.push_back(first.log_uniform(kA, "z", 10, 1'000'000));
    drawn.push_back(first.between(kB, "w", -5, 5));
  }
  ChoiceSource again(999, ChoiceMode::kReplay);
  again.set_overrides(first.deviations());
  size_t at = 0;
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(again.choose(kA, "x", 3), drawn[at++]);
    EXPECT_EQ(again.chance(kB, "y", 0) ? 1 : 0,
              drawn[at++]);  // the rate doesn't matter in a replay
    EXPECT_EQ(again.log_uniform(kA, "z", 10, 1'000'000), drawn[at++]);
    EXPECT_EQ(again.between(kB, "w", -5, 5), drawn[at++]);
  }
}

TEST(Choices, ReplayWithoutDeviationsIsDull) {
  ChoiceSource source(11, ChoiceMode::kReplay);
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(source.choose(kA, "x", 9), 0u);
    EXPECT_FALSE(source.chance(kA, "y", 999'999));
    EXPECT_EQ(source.log_uniform(kA, "z", 17, 40), 17);
  }
  EXPECT_EQ(source.deviations_seen(), 0u);
}

TEST(Choices, OverridesLieOverASeed) {
  ChoiceSource plain(5);
  ChoiceSource bent(5);
  const std::vector<Deviation> overrides = {{.stream = kA, .index = 3, .value = 77}};
  bent.set_overrides(overrides);
  for (uint32_t i = 0; i < 10; ++i) {
    const uint32_t expected = plain.choose(kA, "x", 100);
    EXPECT_EQ(bent.choose(kA, "x", 100), i == 3 ? 77u : expected);
  }
}

TEST(Choices, AnOverrideIsCutToTheOutcomesThereAre) {
  ChoiceSource source(5, ChoiceMode::kReplay);
  const std::vector<Deviation> overrides = {{.stream = kA, .index = 0, .value = 77}};
  source.set_overrides(overrides);
  EXPECT_EQ(source.choose(kA, "x", 10), 9u);
}

TEST(Choices, LogUniformCoversItsRange) {
  ChoiceSource source(5);
  bool low = false;
  bool high = false;
  for (int i = 0; i < 10'000; ++i) {
    const int64_t value = source.log_uniform(kA, "x", 10, 1'000'000);
    ASSERT_GE(value, 10);
    ASSERT_LE(value, 1'000'000);
    low = low || value < 20;
    high = high || value > 500'000;
  }
  EXPECT_TRUE(low);
  EXPECT_TRUE(high);
}

TEST(Choices, WeightedKeepsToItsWeights) {
  ChoiceSource source(5);
  const std::vector<uint32_t> weights = {100'000, 0, 300'000};
  std::vector<int> seen(4, 0);
  for (int i = 0; i < 10'000; ++i) ++seen.at(source.weighted(kA, "x", weights));
  EXPECT_NEAR(seen[0], 6000, 300);
  EXPECT_NEAR(seen[1], 1000, 200);
  EXPECT_EQ(seen[2], 0);
  EXPECT_NEAR(seen[3], 3000, 300);
}

TEST(Choices, AFifthOfTheSwarmsIsQuietAndTheRestIsMixed) {
  int quiet = 0;
  int sum = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    ChoiceSource source(seed);
    const FaultRates rates = draw_swarm(source, false);
    int on = 0;
    for (uint32_t i = 1; i < kFaultCount; ++i) {
      on += rates.of(static_cast<Fault>(i)) != 0 ? 1 : 0;
    }
    quiet += on == 0 ? 1 : 0;
    sum += on;
    EXPECT_EQ(rates.of(Fault::kWrongPages), 0u);  // only with checksums
  }
  EXPECT_NEAR(quiet, 200, 50);
  EXPECT_GT(sum, 10'000);
}

}  // namespace
}  // namespace weightlane::sim
