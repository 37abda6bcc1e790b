// The registry of planted bugs (ros/planted_bugs.h): what each does wrong, and how many seeds the
// campaign takes to see it. Only weightlane-sim-bugs has this.
#pragma once

#include <cstdint>
#include <optional>
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
  bool shrink = false;          // make the first failure of each small as well
  int64_t budget_seconds = 60;  // for each
  std::string traces;           // shrink: folder for NAME.trace of each; empty: not written
};

struct BugFinding {
  std::string name;
  std::string description;
  bool found = false;         // in every range
  uint64_t median_seeds = 0;  // of the ranges; 0: not found
  uint64_t p95_seeds = 0;
  std::string checker;  // which fired, in most ranges
  uint64_t seed = 0;    // that failed first; 0: none
  std::optional<size_t> shrunk_deviations;
  double shrink_seconds = 0;
};

// kInvalidArgument: no bug of that name; lists them.
Result<std::vector<BugFinding>> find_bugs(const BugOptions& options);

// The plan in which this bug is searched for with this seed.
Plan bug_plan(const std::string& name, uint64_t seed);

// Switches the bug of this name on in this process; "" switches it off. False: there is none.
bool plant_bug(const std::string& name);

// Shrinks the first failure of each finding, and writes it down where the options say
// (bug_traces.cc). kInvalidArgument: a file cannot be written.
Result<Done> shrink_findings(std::vector<BugFinding>& findings, const BugOptions& options);

// The traces of a folder, each of which names its bug. Without `refresh` they are only looked at:
// with its bug each must violate its promise, without it none may violate any.
struct TracesOptions {
  std::string folder;
  bool refresh = false;    // make those anew that no longer fail: search, shrink, keep what is said
  bool all = false;        // refresh: the others too
  uint64_t seeds = 20000;  // to search, at most
  int64_t budget_seconds = 60;
  int jobs = 1;
};
// 0: all is well; 1: something is wrong, or cannot be found; 77: some have to be refreshed.
int tend_traces(const TracesOptions& options);

std::string format_findings(const std::vector<BugFinding>& findings, bool json);

}  // namespace weightlane::sim
