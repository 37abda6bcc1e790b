// Goal: whole worlds under the swarm: same seed, same hash; the deviations alone replay it;
// invariants hold whatever happens; every fault x outcome that can be had is had. Method: two
// sources, three readers and a server that reconnect, read, fence, destroy and call as they please,
// under the injector, for hundreds of seeds; an observer holds C2 and C3 against what the readers
// were told.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "sim/fault_injector.h"
#include "tests/sim/core_world.h"

namespace weightlane::sim {
namespace {

TEST(Swarm, SameSeedSameHash) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    ChoiceSource one(seed);
    ChoiceSource two(seed);
    const SwarmResult first = run_swarm(one);
    const SwarmResult second = run_swarm(two);
    EXPECT_EQ(first.hash, second.hash) << "seed " << seed;
    EXPECT_EQ(first.events, second.events);
  }
}

// The same in every build: -O2, -O0, sanitizers, patterned locals. A change of the core changes
// them; the test says to what.
constexpr uint64_t kGolden[] = {16203554821388428765ull, 9542237734196878589ull,
                                9260221700656525200ull,  8679348648963784131ull,
                                5404718571920173033ull,  14787468774913788291ull,
                                11742540801158901988ull, 16332883460517066115ull};

TEST(Swarm, HashesAreTheSameInEveryBuild) {
  for (uint64_t seed = 0; seed < std::size(kGolden); ++seed) {
    ChoiceSource choices(seed);
    EXPECT_EQ(run_swarm(choices).hash, kGolden[seed]) << "seed " << seed;
  }
}

TEST(Swarm, SeedsDiffer) {
  std::set<uint64_t> hashes;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    ChoiceSource choices(seed);
    hashes.insert(run_swarm(choices).hash);
  }
  EXPECT_EQ(hashes.size(), 40u);
}

TEST(Swarm, DeviationsReplayARunWithoutItsDraws) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    ChoiceSource first(seed);
    first.set_recording(true);
    const SwarmResult recorded = run_swarm(first);
    // Only Runtime::random still comes from the seed.
    ChoiceSource again(seed, ChoiceMode::kReplay);
    again.set_overrides(first.deviations());
    const SwarmResult replayed = run_swarm(again);
    EXPECT_EQ(recorded.hash, replayed.hash) << "seed " << seed;
  }
}

TEST(Swarm, FirstDifferingEventCanBeFound) {
  std::vector<EventRecord> events;
  ChoiceSource one(5);
  Recorder recorder(events);
  const SwarmResult first = run_swarm(one, &recorder);
  EXPECT_EQ(first.violations, "");
  std::vector<EventRecord> bent_events;
  ChoiceSource two(5);
  const std::vector<Deviation> bend = {
      {.stream = stream_of({4}, Subsystem::kData), .index = 20, .value = ~0u},
      {.stream = stream_of({4}, Subsystem::kData), .index = 21, .value = ~0u}};
  two.set_overrides(bend);
  Recorder bent_recorder(bent_events);
  run_swarm(two, &bent_recorder);
  const auto differing =
      std::mismatch(events.begin(), events.end(), bent_events.begin(), bent_events.end());
  EXPECT_NE(differing.first, events.begin());
  EXPECT_NE(differing.first, events.end());
}

TEST(Swarm, InvariantsHoldAndFaultsAreSeen) {
  FaultHits all;
  uint64_t reads = 0;
  for (uint64_t seed = 0; seed < 600; ++seed) {
    ChoiceSource choices(seed);
    const SwarmResult result = run_swarm(choices);
    ASSERT_EQ(result.violations, "") << "seed " << seed;
    reads += result.reads_succeeded;
    for (uint32_t fault = 0; fault < kFaultCount; ++fault) {
      for (uint32_t outcome = 0; outcome < kWorkOutcomes; ++outcome) {
        const auto f = static_cast<Fault>(fault);
        const auto o = static_cast<WorkOutcome>(outcome);
        all.at(f, o) += result.faults.at(f, o);
      }
    }
  }
  EXPECT_GT(reads, 10'000u);
  for (const flow::ProbePoint& point : fault_probes()) {
    const uint32_t cell = point.id - kFirstSimProbe;
    const auto fault = static_cast<Fault>(cell / kWorkOutcomes);
    const auto outcome = static_cast<WorkOutcome>(cell % kWorkOutcomes);
    // F18 and F20 are off without checksums; kDestroyFails by default.
    if (fault == Fault::kWrongPages || fault == Fault::kNotVisible || fault == Fault::kDestroyFails)
      continue;
    if (all.at(fault, outcome) == 0) std::printf("not reached: %s\n", point.name);
  }
  for (uint32_t fault = 1; fault < kFaultCount; ++fault) {
    const auto f = static_cast<Fault>(fault);
    if (f == Fault::kWrongPages || f == Fault::kNotVisible || f == Fault::kDestroyFails) continue;
    if (f == Fault::kLocalMistake) continue;  // a mistake of whoever posts
    // This program never takes its memory back; the campaign's does.
    const bool needs_protocol =
        f == Fault::kTorn || f == Fault::kMixedAfterFailure || f == Fault::kChangedUnderRead;
    if (needs_protocol) continue;
    EXPECT_GT(all.of(f), 0u) << fault_name(f);
  }
}

}  // namespace
}  // namespace weightlane::sim
