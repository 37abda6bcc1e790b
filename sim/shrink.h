// Shrinking: from a failure to the smallest one of its kind: fewer replicas, shards, versions and
// habits, no fault that is not needed, choices back to 0. What is left fails by the same check
// (judge.h); it may be another schedule than the one it came from.
//
//   1. whole kinds of choices go (all delays of messages, all thinking, all of one host, ...);
//   where
//      many stay, other seeds that fail in the same way are tried for a while;
//   2. the plan becomes smaller and plainer, the choices that are left follow their hosts;
//   3. what is left goes in halves, quarters, ..., one by one, and to lower outcomes;
//   4. while more than a few are left: a search for other, shorter lists, drawn at random around
//      the best one, with times and sizes of other seeds.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sim/judge.h"
#include "sim/trace_file.h"

namespace weightlane::sim {

struct ShrinkOptions {
  int jobs = 1;
  int64_t budget_ms = 60'000;
  size_t enough = 1;                   // choices left with which the search of step 4 is content
  std::function<void(bool on)> plant;  // see Judge
  // The plan of a seed, where it is not draw_plan's of the same scenario.
  std::function<Plan(uint64_t seed)> plan_of;
  // Told of progress, when not empty: candidates judged, choices left.
  std::function<void(uint64_t judged, size_t left)> on_progress;
};

struct Shrunk {
  TraceFile trace;  // with its story
  size_t choices_before = 0;
  size_t choices = 0;
  uint64_t judged = 0;  // candidates
  double seconds = 0;
};

// kInvalidArgument: it does not fail in this build.
Result<Shrunk> shrink(const Candidate& candidate, const ShrinkOptions& options);

// The candidate that a trace file describes.
Result<Candidate> candidate_of(const TraceFile& trace);
TraceFile trace_of(const Candidate& candidate, const Verdict& verdict);

// ---- Smaller plans (shrink_plan.cc).
// Every way to make the plan a little smaller, biggest steps first. Choices keep to their hosts.
std::vector<Candidate> smaller_plans(const Candidate& from);

}  // namespace weightlane::sim
