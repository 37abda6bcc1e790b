// The registry of planted bugs (ros/planted_bugs.h): what each does wrong, and how many seeds the
// campaign takes to see it. Only weightlane-sim-bugs has this.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/plan.h"

namespace weightlane::sim {

struct BugOptions {
  std::string only;       // one bug, by name; empty: all
  uint64_t seeds = 2000;  // at most so many are tried, per range
  uint64_t ranges = 5;    // seed ranges, for the median
  uint64_t first = 1;
  int jobs = 1;
  bool json = false;
};

struct BugFinding {
  std::string name;
  std::string description;
  bool found = false;         // in every range
  uint64_t median_seeds = 0;  // of the ranges; 0: not found
  uint64_t p95_seeds = 0;
  std::string checker;  // which fired, in most ranges
};

// kInvalidArgument: no bug of that name; lists them.
Result<std::vector<BugFinding>> find_bugs(const BugOptions& options);

std::string format_findings(const std::vector<BugFinding>& findings, bool json);

}  // namespace weightlane::sim
