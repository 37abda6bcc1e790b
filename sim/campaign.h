// Campaign: many schedules, spread over processes, and what they add up to.
//
// The sum does not depend on how the seeds were spread: the hash of a campaign is a sum over its
// schedules. A schedule that violates a promise is run once more with its choices written down, and
// becomes a trace file. One that kills its process (a failed assertion, a loop without end) is a
// violation too; its trace has the seed and the plan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/plan.h"
#include "sim/schedule.h"
#include "sim/trace_file.h"

namespace weightlane::sim {

struct CampaignOptions {
  Scenario scenario = Scenario::kDefault;
  uint64_t first = 1;
  uint64_t seeds = 1000;
  int jobs = 1;
  bool check_determinism = false;
  bool json = false;
  bool probes = false;                 // count what was reached
  std::string bug;                     // planted, already switched on; for the traces
  std::string traces = "traces";       // folder for trace files; must exist
  uint64_t violations_most = 20;       // stop after so many
  int64_t schedule_seconds_most = 60;  // of real time, then it is said to hang
};

struct ProbeLine {
  std::string name;
  bool rare = false;
  uint64_t hits = 0;
  uint64_t seeds = 0;
};

struct CampaignResult {
  uint64_t schedules = 0;
  uint64_t violations = 0;
  uint64_t events = 0;
  uint64_t heartbeats = 0;
  uint64_t transfers = 0;
  uint64_t events_median = 0;       // per schedule
  uint64_t busy_events_median = 0;  // without those that heartbeats cause
  uint64_t transfers_median = 0;
  uint64_t hash = 0;
  double seconds = 0;            // of real time
  double simulated_seconds = 0;  // of virtual time, over all schedules
  std::vector<ProbeLine> probes;
};

CampaignResult run_campaign(const CampaignOptions& options);

// What ends a campaign: medians, and the line schedules=... that scripts read; or one JSON object.
std::string summary(const CampaignResult& result, bool json);

// The probes that no schedule hit, in lines for people; those not marked rare first.
std::string unreached(const CampaignResult& result);

// Runs the plan again with everything written down.
TraceFile trace_of(const Plan& plan);

// Two runs of a plan, event by event. Empty when they are the same; else the first two events that
// differ.
std::string first_difference(const Plan& plan);

// The plan of a trace: drawn from its seed, overwritten by its settings. Errors: read_plan's.
Result<Plan> plan_of(const TraceFile& trace);

}  // namespace weightlane::sim
