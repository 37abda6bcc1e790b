// Goal: plans, trace files and schedules are what they say: text forms round-trip, a run is a pure
// function of its seed, a trace replays to its hash, and the default mix is as rich as promised.
// Method: a few hundred seeds; every run here has all checkers on.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "sim/campaign.h"
#include "sim/shrink.h"

namespace weightlane::sim {
namespace {

TEST(Plan, TextRoundTrips) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const Plan plan = draw_plan(Scenario::kDefault, seed);
    Plan read;
    read.world.faults = FaultRates{};
    const Result<Done> result = read_plan(plan_text(plan), read);
    ASSERT_TRUE(result.ok()) << result.error().message;
    EXPECT_EQ(plan_text(plan), plan_text(read)) << "seed " << seed;
  }
}

TEST(Plan, UnknownSettingIsRefusedByName) {
  Plan plan;
  const Result<Done> result = read_plan({{"shardz", "3"}}, plan);
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.error().message.find("shardz"), std::string::npos);
}

TEST(Plan, SwarmIsQuietInAFifthOfTheSeedsAndKeepsItsShape) {
  int quiet = 0;
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    const Plan plan = draw_plan(Scenario::kDefault, seed);
    if (plan.world.faults == FaultRates{}) ++quiet;
    EXPECT_GE(plan.shards, 2u);
    EXPECT_LE(plan.shards, 4u);
    EXPECT_GE(plan.rollouts, 3u);
    EXPECT_GE(plan.habits.rounds, 3u);
  }
  EXPECT_GT(quiet, 150);
  EXPECT_LT(quiet, 260);
}

TEST(TraceFile, RoundTrips) {
  const TraceFile trace = trace_of(draw_plan(Scenario::kDefault, 7));
  const Result<TraceFile> read = parse_trace(format_trace(trace));
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(*read, trace);
}

TEST(TraceFile, BadLinesAreNamed) {
  EXPECT_NE(parse_trace("hello\n").error().message.find("line 1"), std::string::npos);
  EXPECT_NE(parse_trace("weightlane-trace 1\nseed x\n").error().message.find("line 2"),
            std::string::npos);
  EXPECT_NE(parse_trace("weightlane-trace 1\nchoice 1 2 3 3 n\n").error().message.find("line 2"),
            std::string::npos);
}

// The choices of a recorded run, laid over a run whose every draw is dull, give the same run.
TEST(Schedule, ChoicesOfATraceReplayItsHash) {
  for (uint64_t seed = 11; seed <= 20; ++seed) {
    const TraceFile trace = trace_of(draw_plan(Scenario::kDefault, seed));
    const Result<Plan> plan = plan_of(trace);
    ASSERT_TRUE(plan.ok());
    std::vector<Deviation> overrides;
    for (const TraceChoice& choice : trace.choices) {
      overrides.push_back({choice.stream, choice.index, choice.n, choice.value, nullptr});
    }
    Schedule::Options options;
    options.mode = ChoiceMode::kReplay;
    options.overrides = overrides;
    Schedule schedule(*plan, options);
    EXPECT_EQ(schedule.run().hash, trace.hash) << "seed " << seed;
  }
}

// What was a bug once stays fixed: each trace's plan, seed and choices run without a violation.
TEST(Schedule, TracesOfOldBugsKeepEveryPromise) {
  const char* source = std::getenv("WL_SOURCE_DIR");
  const std::string folder = std::string(source != nullptr ? source : ".") + "/traces";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".trace") continue;
    const Result<TraceFile> trace = read_trace(entry.path());
    ASSERT_TRUE(trace.ok()) << trace.error().message;
    EXPECT_FALSE(trace->story.empty()) << entry.path();
    const Result<Candidate> candidate = candidate_of(*trace);
    ASSERT_TRUE(candidate.ok()) << entry.path() << ": " << candidate.error().message;
    const Outcome outcome = run_plan_with(candidate->plan, candidate->mode, candidate->choices);
    EXPECT_FALSE(outcome.violation) << entry.path() << ": " << outcome.violation->text;
  }
}

TEST(Schedule, EveryEventIsTheSameTwice) {
  for (const Scenario scenario : kScenarios) {
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      EXPECT_EQ(first_difference(draw_plan(scenario, seed)), "")
          << scenario_name(scenario) << " seed " << seed;
    }
  }
}

TEST(Schedule, DefaultMixIsRichAndKeepsEveryPromise) {
  std::vector<uint64_t> events;
  std::vector<uint64_t> transfers;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const Outcome outcome = run_plan(draw_plan(Scenario::kDefault, seed));
    ASSERT_FALSE(outcome.violation)
        << "seed " << seed << ": " << outcome.violation->promise << ": " << outcome.violation->text;
    events.push_back(outcome.events);
    transfers.push_back(outcome.transfers);
  }
  std::sort(events.begin(), events.end());
  std::sort(transfers.begin(), transfers.end());
  EXPECT_GE(events[events.size() / 2], 2000u);
  EXPECT_GE(transfers[transfers.size() / 2], 12u);
}

TEST(Schedule, OtherScenariosKeepEveryPromise) {
  for (const Scenario scenario : kScenarios) {
    for (uint64_t seed = 1; seed <= 40; ++seed) {
      const Outcome outcome = run_plan(draw_plan(scenario, seed));
      ASSERT_FALSE(outcome.violation)
          << scenario_name(scenario) << " seed " << seed << ": " << outcome.violation->promise
          << ": " << outcome.violation->text;
    }
  }
}

}  // namespace
}  // namespace weightlane::sim
